"""Which programs exist, which Go module they come from, and how they are linked."""

import re
from dataclasses import dataclass
from pathlib import Path

TOOLS_FOLDER = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Tool:
    """One Go module below `tools/` and the programs it builds.

    `programs` maps the name of a program to its Go package; `version_module` is the required module whose version
    `version_flags` (Go linker flags, `{version}`, `{major}`, `{minor}` filled in) write into the programs.
    """

    name: str
    programs: dict[str, str]
    version_module: str
    version_flags: str = ""

    @property
    def folder(self) -> Path:
        """The folder with go.mod and go.sum."""
        return TOOLS_FOLDER / self.name

    def version(self) -> str:
        """The version of the tool's main module, such as v1.36.3, read from go.mod."""
        text = (self.folder / "go.mod").read_text(encoding="utf-8")
        found = re.search(rf"^(?:require)?\s*{re.escape(self.version_module)}\s+(v\S+)", text, re.MULTILINE)
        if found is None:
            raise ValueError(f"{self.folder / 'go.mod'} requires no {self.version_module}")
        return found[1]

    def ldflags(self) -> str:
        """Linker flags: no symbol tables (a third of the size), and the version."""
        version = self.version()
        major, minor, *_ = version.removeprefix("v").split(".")
        return " ".join(filter(None, ["-s -w", self.version_flags.format(version=version, major=major, minor=minor)]))


_COMPONENT_VERSION = "-X k8s.io/component-base/version"

# Ordered by how long they take and by how soon something needs them.
TOOLS: dict[str, Tool] = {
    tool.name: tool
    for tool in (
        Tool(
            "kubernetes",
            {
                name: f"k8s.io/kubernetes/cmd/{name}"
                for name in (
                    "kube-apiserver",
                    "kube-controller-manager",
                    "kube-proxy",
                    "kube-scheduler",
                    "kubectl",
                    "kubelet",
                )
            },
            "k8s.io/kubernetes",
            # Without them /version is a placeholder and a chart's kubeVersion check fails.
            f"{_COMPONENT_VERSION}.gitVersion={{version}} {_COMPONENT_VERSION}.gitMajor={{major}}"
            f" {_COMPONENT_VERSION}.gitMinor={{minor}}",
        ),
        Tool("etcd", {"etcd": "go.etcd.io/etcd/server/v3"}, "go.etcd.io/etcd/server/v3"),
        Tool(
            "containerd",
            {
                name: f"github.com/containerd/containerd/v2/cmd/{name}"
                for name in ("containerd", "containerd-shim-runc-v2", "ctr")
            },
            "github.com/containerd/containerd/v2",
            "-X github.com/containerd/containerd/v2/version.Version={version}",
        ),
        Tool("coredns", {"coredns": "octavo.dev/tools/coredns"}, "github.com/coredns/coredns"),
        Tool(
            "registry",
            {"registry": "octavo.dev/tools/registry"},
            "github.com/distribution/distribution/v3",
        ),
        Tool(
            "helm",
            {"helm": "helm.sh/helm/v4/cmd/helm", "kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform"},
            "helm.sh/helm/v4",
            "-X helm.sh/helm/v4/internal/version.version={version}",
        ),
        Tool("kwok", {"kwok": "sigs.k8s.io/kwok/cmd/kwok"}, "sigs.k8s.io/kwok"),
        Tool("fakegpu", {"fakegpu": "octavo.dev/tools/fakegpu"}, "k8s.io/kubelet"),
    )
}

OWNER: dict[str, Tool] = {program: tool for tool in TOOLS.values() for program in tool.programs}
