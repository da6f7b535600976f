import json
from pathlib import Path

import pytest

from localcluster import cgroups, cli, components, config, record
from localcluster.addresses import Addresses
from localcluster.down import cgroup_name
from localcluster.errors import ClusterError
from localcluster.host import check_empty, check_node_data
from localcluster.record import Record

DATA, PLAN = Path("/data"), Addresses(245)


@pytest.fixture(autouse=True)
def _own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a/b", "..", "x" * 41])
def test_names_that_cannot_name_folders_and_links_are_refused(name: str) -> None:
    with pytest.raises(ClusterError, match="--name"):
        record.check_name(name)


def test_a_record_is_read_back_and_forgotten() -> None:
    kept = Record("a", DATA, 245, PLAN.server)
    kept.save()
    assert record.load("a") == kept
    assert record.load_all() == [kept]
    kept.forget()
    assert record.load("a") is None


def test_a_cluster_that_another_process_works_on_is_not_touched_and_the_lock_leaves_no_file(tmp_path: Path) -> None:
    with (
        record.held("a"),
        pytest.raises(ClusterError, match="another process"),
        record.held("a"),
    ):
        pass
    assert list((tmp_path / "state" / "clusters").iterdir()) == []


def test_two_clusters_of_one_name_in_two_places_have_cgroups_of_their_own() -> None:
    one, two = Record("a", Path("/one"), 245, ""), Record("a", Path("/two"), 246, "")
    assert cgroup_name(one) != cgroup_name(two)


@pytest.mark.parametrize(
    ("path", "words"),
    [("/run/x", "must not be below /run"), ("/tmp/with space", "letters, digits"), ("/" + "x" * 70, "at most 70")],
)
def test_a_data_folder_that_cannot_work_is_refused_with_the_reason(path: str, words: str) -> None:
    with pytest.raises(ClusterError, match=words):
        check_node_data(Path(path))


def test_a_data_folder_with_somebodys_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letter").touch()
    with pytest.raises(ClusterError, match="new or an empty folder"):
        check_empty(tmp_path)


def test_the_configurations_agree_on_addresses_and_folders() -> None:
    programs = {name: Path("/bin") / name for name in _programs()}
    commands = components.node(programs, DATA, PLAN)
    assert f"--service-cluster-ip-range={PLAN.services}" in commands["kube-apiserver"]
    assert f"--cluster-cidr={PLAN.pods}" in commands["kube-proxy"]
    kubelet = json.loads(config.kubelet(DATA, PLAN, "octavo-a-1"))
    assert kubelet["clusterDNS"] == [PLAN.dns]
    assert kubelet["cgroupRoot"] == "/octavo-a-1"
    assert kubelet["protectKernelDefaults"] is True
    assert json.loads(config.registry(Path("/images"), PLAN))["http"]["addr"] == PLAN.registry
    assert PLAN.registry in config.registry_hosts(PLAN)
    assert set(components.FIRST) <= set(commands)
    assert json.loads(config.cni(DATA, PLAN))["plugins"][0]["ipam"]["ranges"] == [[{"subnet": PLAN.pods}]]


def test_version_1_cgroups_are_made_in_every_hierarchy_once_and_removed(tmp_path: Path) -> None:
    for hierarchy in ("memory", "cpu,cpuacct", "unified"):
        (tmp_path / hierarchy).mkdir()
        (tmp_path / hierarchy / "cgroup.procs").touch()
    (tmp_path / "cpu").symlink_to("cpu,cpuacct")
    cgroups.create("octavo-a", tmp_path)
    made = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/octavo-a"))
    assert made == ["cpu,cpuacct/octavo-a", "cpu/octavo-a", "memory/octavo-a"]
    (tmp_path / "unified" / "octavo-a" / "kubepods").mkdir(parents=True)
    assert cgroups.remove("octavo-a", tmp_path) == []
    assert list(tmp_path.glob("*/octavo-a")) == []


def test_version_2_cgroups_without_a_needed_controller_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu io pids\n")
    with pytest.raises(ClusterError, match="cpuset, memory"):
        cgroups.create("octavo-a", tmp_path)


def test_unknown_clusters_are_named_and_known_ones_listed(capsys: pytest.CaptureFixture[str]) -> None:
    Record("other", DATA, 245, "").save()
    assert cli.main(["kubeconfig", "--name", "mine"]) == 1
    assert capsys.readouterr().err == "error: there is no cluster mine; there is: other\n"


def test_a_network_for_a_control_plane_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["up", "--control-plane-only", "--network", "9"]) == 1
    assert "--network" in capsys.readouterr().err


def test_down_of_nothing_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["down", "--name", "mine"]) == 0
    assert capsys.readouterr().out == "there is no cluster mine\n"


def _programs() -> list[str]:
    kubernetes = ["apiserver", "controller-manager", "proxy", "scheduler"]
    return ["etcd", "containerd", "registry", "kubelet", *(f"kube-{name}" for name in kubernetes)]
