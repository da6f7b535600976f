import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcluster.addresses import DEFAULT_NETWORK, Addresses, choose
from localcluster.errors import ClusterError


@given(st.integers(0, 255))
def test_all_addresses_lie_in_the_clusters_own_network_and_do_not_overlap(number: int) -> None:
    plan = Addresses(number)
    own = ipaddress.ip_network(f"10.{number}.0.0/16")
    pods, services = ipaddress.ip_network(plan.pods), ipaddress.ip_network(plan.services)
    link = ipaddress.ip_network(f"{plan.host}/30", strict=False)
    assert ipaddress.ip_address(plan.node) in link
    assert all(net.subnet_of(own) for net in (pods, services, link))
    assert not any(a.overlaps(b) for a, b in ((pods, services), (pods, link), (services, link)))
    assert ipaddress.ip_address(plan.api_service) == services[1]
    assert ipaddress.ip_address(plan.dns) in services
    assert len(plan.link) <= 15


def test_the_default_network_is_taken_when_it_is_free() -> None:
    assert choose(None, ["127.0.0.0/8", "192.168.1.0/24"], []).network == DEFAULT_NETWORK


def test_a_network_with_a_route_or_of_another_cluster_is_passed_over() -> None:
    assert choose(None, ["10.245.64.0/18"], [246]).network == 247


def test_a_route_to_all_of_10_takes_nothing_away() -> None:
    assert choose(None, ["10.0.0.0/8"], []).network == DEFAULT_NETWORK


@pytest.mark.parametrize(("wanted", "words"), [(245, "already in use"), (256, "must be 0 to 255"), (-1, "0 to 255")])
def test_a_network_that_cannot_be_had_is_refused_with_the_reason(wanted: int, words: str) -> None:
    with pytest.raises(ClusterError, match=words):
        choose(wanted, ["10.245.0.7/32"], [])


def test_running_out_of_networks_says_what_to_do() -> None:
    with pytest.raises(ClusterError, match="--network"):
        choose(None, [], range(200, 255))
