"""The address plan of a cluster, all inside 10.N.0.0/16, and the choice of a free N."""

import ipaddress
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from localcluster.errors import ClusterError

DEFAULT_NETWORK = 245
_NARROW = 12
_CANDIDATES = (*range(DEFAULT_NETWORK, 255), *range(DEFAULT_NETWORK - 1, 199, -1))


@dataclass(frozen=True, slots=True)
class Addresses:
    """Every address of the cluster with network number N.

    The host reaches the node over a veth pair, 10.N.255.1 on the host, 10.N.255.2 on the node.
    """

    network: int

    @property
    def host(self) -> str:
        """The host's side of the veth pair."""
        return f"10.{self.network}.255.1"

    @property
    def node(self) -> str:
        """The node: API server, kubelet, registry."""
        return f"10.{self.network}.255.2"

    @property
    def pods(self) -> str:
        """The network of pods."""
        return f"10.{self.network}.0.0/24"

    @property
    def services(self) -> str:
        """The network of ClusterIPs."""
        return f"10.{self.network}.64.0/18"

    @property
    def api_service(self) -> str:
        """ClusterIP of `kubernetes.default`: the first of the Service network."""
        return f"10.{self.network}.64.1"

    @property
    def dns(self) -> str:
        """ClusterIP of the cluster's DNS."""
        return f"10.{self.network}.64.10"

    @property
    def server(self) -> str:
        """URL of the API server."""
        return f"https://{self.node}:6443"

    @property
    def registry(self) -> str:
        """Host and port of the image registry, for the host; its name in manifests is localhost:5000."""
        return f"{self.node}:5000"

    @property
    def link(self) -> str:
        """Name of the host's side of the veth pair; at most 15 characters (IFNAMSIZ)."""
        return f"octavo-{self.network}"


def choose(wanted: int | None, routes: Iterable[str], reserved: Collection[int]) -> Addresses:
    """The wanted network if it is free, else the first free one; raises ClusterError.

    `routes` are the host's destinations (CIDR), `reserved` the numbers of other clusters. Routes as wide as a VPN's
    10.0.0.0/8 are ignored: the cluster's routes are more specific and take precedence.
    """
    parsed = [ipaddress.ip_network(route, strict=False) for route in routes]
    networks = [network for network in parsed if network.prefixlen >= _NARROW]

    def taken(number: int) -> bool:
        own = ipaddress.ip_network(f"10.{number}.0.0/16")
        return number in reserved or any(net.overlaps(own) for net in networks)

    if wanted is not None:
        if not 0 <= wanted <= 255:
            raise ClusterError(f"--network {wanted}: must be 0 to 255 (the N of 10.N.0.0/16)")
        if taken(wanted):
            raise ClusterError(
                f"--network {wanted}: 10.{wanted}.0.0/16 is already in use on this machine; leave --network out to"
                " have a free one chosen"
            )
        return Addresses(wanted)
    for number in _CANDIDATES:
        if not taken(number):
            return Addresses(number)
    raise ClusterError("no free 10.N.0.0/16 with N from 200 to 254; choose one with --network N")
