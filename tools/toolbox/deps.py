"""Programs from Debian packages: finds missing ones and installs them."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from toolbox import arm
from toolbox.errors import ToolError
from toolbox.progress import Progress

CNI_FOLDER = Path("/usr/lib/cni")
# Includes the sbin folders, which the PATH of a shell may lack, as after Debian's plain `su`.
SEARCH_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


@dataclass(frozen=True, slots=True)
class Need:
    """A requirement: a program on PATH, or an existing file if it is an absolute path."""

    what: str
    package: str
    why: str

    def met(self) -> bool:
        """True if the requirement is met."""
        if self.what.startswith("/"):
            return Path(self.what).exists()
        return shutil.which(self.what, path=SEARCH_PATH) is not None


CONTROL_PLANE = (Need("openssl", "openssl", "keys and certificates of the cluster"),)
NODE = (
    *CONTROL_PLANE,
    Need("runc", "runc", "containers"),
    Need("ip", "iproute2", "the node's network"),
    Need("nsenter", "util-linux", "the node's namespaces"),
    Need("mount", "mount", "the node's private mounts"),
    Need(str(CNI_FOLDER / "bridge"), "containernetworking-plugins", "pod networks"),
    Need("iptables", "iptables", "Services (kube-proxy)"),
    Need("nft", "nftables", "network policies"),
    Need("gcc", "gcc", "the pause image"),
    Need("/usr/include/unistd.h", "libc6-dev", "the pause image"),
)
IMAGES = (
    Need("buildah", "buildah", "container images"),
    Need("mmdebstrap", "mmdebstrap", "the base image where no image registry is reachable"),
    Need("/bin/busybox", "busybox-static", "the client pods of the end-to-end tests"),
)
# Tests of the ARM kernels are skipped without them. Only the nightly ones run on the emulator.
ARM = (Need(arm.COMPILER, "g++-aarch64-linux-gnu", "the CPU kernels for ARM"),)
EMULATED_ARM = (*ARM, Need(arm.EMULATOR, "qemu-user", "tests of the CPU kernels for ARM"))

_HASTY = ("--option=Acquire::Retries=0", "--option=Acquire::http::Timeout=10", "--option=Acquire::https::Timeout=10")


def missing(needs: Sequence[Need]) -> list[Need]:
    """The unmet requirements."""
    return [need for need in needs if not need.met()]


def message(needs: Sequence[Need]) -> str:
    """The missing programs, why they are needed, and the command that installs them."""
    lines = [f"  {need.what:<28} {need.why}" for need in needs]
    packages = " ".join(sorted({need.package for need in needs}))
    return "\n".join(
        ["missing on this machine:", *lines, f"on Debian or Ubuntu: sudo apt-get install --yes {packages}"]
    )


def require(needs: Sequence[Need]) -> None:
    """Raises ToolError with the missing programs and the packages to install."""
    if absent := missing(needs):
        raise ToolError(message(absent))


def require_all(needs: Sequence[Need], *, install: bool, progress: Progress, patient: bool = True) -> None:
    """Checks requirements, and installs missing ones on request. Raises ToolError.

    Not `patient`: a mirror that does not answer is given up after ten seconds, without another try.
    """
    absent = missing(needs)
    if absent and install:
        if shutil.which("apt-get") is None or os.geteuid() != 0:
            raise ToolError(f"cannot install: apt-get and root are needed\n{message(absent)}")
        packages = sorted({need.package for need in absent})
        with progress.step(f"apt-get install {' '.join(packages)}") as step:
            for command in (["update"], ["install", "--yes", *packages]):
                step.detail = command[0]
                _apt(command, () if patient else _HASTY)
        absent = missing(absent)
    if absent:
        raise ToolError(message(absent))


def _apt(arguments: Sequence[str], options: Sequence[str]) -> None:
    run = subprocess.run(
        ["apt-get", "--quiet", *options, *arguments],
        check=False,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if run.returncode:
        tail = "\n".join(run.stdout.splitlines()[-15:])
        raise ToolError(f"apt-get {arguments[0]} failed:\n{tail}")
