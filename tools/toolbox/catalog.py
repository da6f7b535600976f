"""The programs of the local cluster, with their Go packages and linker flags."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# One Go module for all programs: shared imports are compiled once.
TOOLS_FOLDER = Path(__file__).resolve().parent.parent
_OWN = "octavo.dev/tools/"


@dataclass(frozen=True, slots=True)
class Program:
    """One program.

    `package`: its Go package; `module`: the required module that determines its version. `cost`: CPU time in seconds,
    system time included, to compile the packages that no earlier program in the table needs, and to link it.
    `flags`: the linker flags that embed the version (`{version}`, `{major}`, `{minor}` are replaced).
    `asks`: the arguments with which it prints its version; a program without them is always built here.
    """

    name: str
    package: str
    module: str
    cost: float
    flags: str = ""
    asks: tuple[str, ...] = ()

    def version(self) -> str:
        """The version of the program's module, such as v1.36.3, read from go.mod."""
        text = (TOOLS_FOLDER / "go.mod").read_text(encoding="utf-8")
        found = re.search(rf"^(?:require)?\s*{re.escape(self.module)}\s+(v\S+)", text, re.MULTILINE)
        if found is None:
            raise ValueError(f"{TOOLS_FOLDER / 'go.mod'} requires no {self.module}")
        return found[1]

    def ldflags(self) -> str:
        """Linker flags: no symbol tables (a third of the size), and the version."""
        version = self.version()
        major, minor, *_ = version.removeprefix("v").split(".")
        return " ".join(filter(None, ["-s -w", self.flags.format(version=version, major=major, minor=minor)]))

    def sources(self) -> list[Path]:
        """Our own source files of the program; everything else is determined by go.mod and go.sum."""
        own = TOOLS_FOLDER / self.package.removeprefix(_OWN) if self.package.startswith(_OWN) else None
        return sorted(own.glob("*.go")) if own else []


_COMPONENT_VERSION = "-X k8s.io/component-base/version"
_CONTAINERD = "github.com/containerd/containerd/v2"


def _kubernetes(name: str, cost: float, *asks: str) -> Program:
    # Without the flags /version is a placeholder, and the kubeVersion check of charts fails.
    flags = (
        f"{_COMPONENT_VERSION}.gitVersion={{version}} {_COMPONENT_VERSION}.gitMajor={{major}}"
        f" {_COMPONENT_VERSION}.gitMinor={{minor}}"
    )
    return Program(name, f"k8s.io/kubernetes/cmd/{name}", "k8s.io/kubernetes", cost, flags, asks or ("--version",))


def _containerd(name: str, package: str, cost: float) -> Program:
    return Program(
        name, package, _CONTAINERD, cost, f"-X {_CONTAINERD}/version.Version={{version}}", asks=("--version",)
    )


PROGRAMS: dict[str, Program] = {
    program.name: program
    for program in (
        Program("etcd", f"{_OWN}etcd", "go.etcd.io/etcd/server/v3", 139, asks=("--version",)),
        _kubernetes("kube-apiserver", 503),
        _kubernetes("kube-controller-manager", 155),
        _kubernetes("kube-scheduler", 4),
        _kubernetes("kubelet", 7),
        _kubernetes("kube-proxy", 19),
        _kubernetes("kubectl", 58, "version", "--client"),
        Program(
            "helm",
            "helm.sh/helm/v4/cmd/helm",
            "helm.sh/helm/v4",
            59,
            "-X helm.sh/helm/v4/internal/version.version={version}",
            ("version", "--short"),
        ),
        _containerd("containerd", f"{_OWN}containerd", 75),
        _containerd("containerd-shim-runc-v2", f"{_CONTAINERD}/cmd/containerd-shim-runc-v2", 3),
        _containerd("ctr", f"{_CONTAINERD}/cmd/ctr", 7),
        # Its plugin order is our own, and it runs in an image without a C library: a program on PATH cannot replace it.
        Program("coredns", f"{_OWN}coredns", "github.com/coredns/coredns", 28),
        Program("registry", f"{_OWN}registry", "github.com/distribution/distribution/v3", 42, asks=("--version",)),
        Program(
            "kubeconform",
            "github.com/yannh/kubeconform/cmd/kubeconform",
            "github.com/yannh/kubeconform",
            3,
            "-X main.version={version}",
            ("-v",),
        ),
        Program("fakegpu", f"{_OWN}fakegpu", "k8s.io/kubelet", 3),
        Program("kwok", "sigs.k8s.io/kwok/cmd/kwok", "sigs.k8s.io/kwok", 17, asks=("--version",)),
    )
}

CONTROL_PLANE = ("etcd", "kube-apiserver")
NODE = (
    *CONTROL_PLANE, "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy",
    "containerd", "containerd-shim-runc-v2", "ctr", "coredns", "registry",
)  # fmt: skip


def cost(names: Iterable[str]) -> float:
    """CPU time in seconds to build these programs from scratch, by the table."""
    return sum(PROGRAMS[name].cost for name in names)
