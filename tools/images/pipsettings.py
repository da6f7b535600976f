"""Gives pip inside a build the package index of this machine, without a trace in the image."""

from __future__ import annotations

import configparser
import os
import ssl
from collections.abc import Mapping
from pathlib import Path

# pip's options for the source of packages; options with local folders would not work inside a build.
_OPTIONS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")
_PIP_NAMES = {"timeout": "PIP_DEFAULT_TIMEOUT"}
_BUNDLE_VARIABLES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
# Paths of the certificate bundle in Debian's and python.org's images.
BUNDLE_IN_IMAGE = "/etc/ssl/certs/ca-certificates.crt"


def options(env: Mapping[str, str] = os.environ, files: tuple[Path, ...] | None = None) -> dict[str, str]:
    """Settings of pip on this machine: later files override earlier ones, the environment overrides all."""
    found: dict[str, str] = {}
    for path in _files(env) if files is None else files:
        parser = configparser.RawConfigParser()
        parser.read(path, encoding="utf-8")
        for section in ("global", "install"):
            if parser.has_section(section):
                found |= {name: value for name, value in parser.items(section) if name in _OPTIONS}
    for name in _OPTIONS:
        if value := env.get(_variable(name)):
            found[name] = value
    return found


def config_text(found: Mapping[str, str], *, bundle: bool) -> str:
    """A pip.conf for the build; `bundle`: the host's certificates are mounted over the image's."""
    lines = ["[global]", "disable-pip-version-check = true"]
    lines += [f"{name} = {' '.join(value.split())}" for name, value in found.items()]
    lines += [f"cert = {BUNDLE_IN_IMAGE}"] if bundle else []
    return "\n".join(lines) + "\n"


def build_arguments(found: Mapping[str, str]) -> dict[str, str]:
    """The same as build arguments, for a builder that cannot mount files. They appear in the image's history."""
    return {_variable(name): value for name, value in found.items()}


def host_bundle(env: Mapping[str, str] = os.environ) -> Path | None:
    """The CA certificates that this machine trusts, as one file."""
    named = [env.get(name) for name in _BUNDLE_VARIABLES]
    for candidate in (*named, ssl.get_default_verify_paths().cafile, BUNDLE_IN_IMAGE):
        if candidate and Path(candidate).is_file():
            return Path(candidate).resolve()
    return None


def _variable(option: str) -> str:
    return _PIP_NAMES.get(option, "PIP_" + option.upper().replace("-", "_"))


def _files(env: Mapping[str, str]) -> tuple[Path, ...]:
    home = Path.home()
    config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    named = [Path(env["PIP_CONFIG_FILE"])] if env.get("PIP_CONFIG_FILE") else []
    return (Path("/etc/pip.conf"), home / ".pip" / "pip.conf", config / "pip" / "pip.conf", *named)
