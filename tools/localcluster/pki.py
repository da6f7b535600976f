"""Keys, certificates and kubeconfigs of a cluster, created with openssl (EC P-256: fast to generate and verify)."""

import base64
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from localcluster.errors import ClusterError

_DAYS = "30"


@dataclass(frozen=True, slots=True)
class Pki:
    """A folder of `NAME.key` and `NAME.crt`, signed by `ca`."""

    folder: Path

    def key(self, name: str) -> Path:
        """Path of a private key."""
        return self.folder / f"{name}.key"

    def crt(self, name: str) -> Path:
        """Path of a certificate."""
        return self.folder / f"{name}.crt"


def create(folder: Path, servers: Mapping[str, tuple[str, Sequence[str]]], clients: Mapping[str, str]) -> Pki:
    """A CA, server certificates (name → subject, alternative names), client certificates (name → subject), `sa` keys.

    Raises ClusterError with openssl's error output.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    pki = Pki(folder)
    _key(pki, "ca")
    usage = "keyUsage=critical,keyCertSign,cRLSign,digitalSignature"
    _openssl(
        folder, "req", "-x509", "-new", "-key", "ca.key", "-subj", "/CN=octavo-local-ca", "-days", _DAYS,
        "-out", "ca.crt", "-addext", usage,
    )  # fmt: skip
    for name, (subject, alternatives) in servers.items():
        _certificate(pki, name, subject, alternatives)
    for name, subject in clients.items():
        _certificate(pki, name, subject, ())
    _key(pki, "sa")
    _openssl(folder, "ec", "-in", "sa.key", "-pubout", "-out", "sa.pub")
    return pki


def write_kubeconfig(path: Path, pki: Pki, user: str, server: str, context: str) -> None:
    """Writes a kubeconfig with embedded certificates, readable only by its owner (JSON, which is valid YAML)."""

    def data(file: Path) -> str:
        return base64.b64encode(file.read_bytes()).decode()

    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context,
        "clusters": [
            {"name": context, "cluster": {"server": server, "certificate-authority-data": data(pki.crt("ca"))}}
        ],
        "users": [
            {
                "name": context,
                "user": {"client-certificate-data": data(pki.crt(user)), "client-key-data": data(pki.key(user))},
            }
        ],
        "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=1), encoding="utf-8")


def _key(pki: Pki, name: str) -> None:
    _openssl(pki.folder, "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{name}.key")
    pki.key(name).chmod(0o600)


def _certificate(pki: Pki, name: str, subject: str, alternatives: Sequence[str]) -> None:
    _key(pki, name)
    extensions = ["keyUsage=digitalSignature", "extendedKeyUsage=clientAuth" + (",serverAuth" if alternatives else "")]
    if alternatives:
        extensions.append(f"subjectAltName={','.join(alternatives)}")
    (pki.folder / f"{name}.ext").write_text("\n".join(extensions), encoding="utf-8")
    _openssl(pki.folder, "req", "-new", "-key", f"{name}.key", "-subj", subject, "-out", f"{name}.csr")
    _openssl(
        pki.folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
        "-days", _DAYS, "-extfile", f"{name}.ext", "-out", f"{name}.crt",
    )  # fmt: skip
    for ending in ("csr", "ext"):
        (pki.folder / f"{name}.{ending}").unlink()


def _openssl(folder: Path, *arguments: str) -> None:
    run = subprocess.run(["openssl", *arguments], check=False, cwd=folder, capture_output=True, text=True)
    if run.returncode:
        raise ClusterError(f"openssl {arguments[0]} failed: {run.stderr.strip()}")
