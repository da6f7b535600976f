"""The container that follows the list of adapters, as a program."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.waiting import eventually
from tests.unit.prefetch.fake_hub import COMMIT, FakeHub
from tests.unit.prefetch.test_adapter import adapter_files

from octavo_inference.sync_adapters import take_credentials
from octavo_protocol.adapters import WantedAdapter, decode_list, encode_wanted


def test_credentials_of_a_mounted_secret_reach_the_next_download(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://hub")
    known, _ = take_credentials(tmp_path / "none", set())  # the Secret does not exist yet
    (tmp_path / "..data").mkdir()  # as the kubelet makes it
    for value in ("first", "rotated"):
        (tmp_path / "HF_TOKEN").write_text(f"{value}\n")
        known, skipped = take_credentials(tmp_path, known)
        assert not skipped
        assert os.environ["HF_TOKEN"] == value
    (tmp_path / "HF_TOKEN").unlink()
    assert take_credentials(tmp_path, known) == (set(), {})
    assert "HF_TOKEN" not in os.environ
    assert os.environ["HF_ENDPOINT"] == "http://hub"


def test_a_file_that_is_no_text_is_skipped_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "AWS_ACCESS_KEY_ID").write_bytes(b"\xff\xfesecret")
    (tmp_path / "AWS_SECRET_ACCESS_KEY").write_bytes(b"sec\0ret")
    (tmp_path / "HF_TOKEN").write_text("good")
    (tmp_path / "S3_CA").mkdir()
    known, skipped = take_credentials(tmp_path, set())
    assert os.environ["HF_TOKEN"] == "good"
    assert "AWS_ACCESS_KEY_ID" not in os.environ
    assert skipped == {
        "AWS_ACCESS_KEY_ID": "it is not UTF-8 text",
        "AWS_SECRET_ACCESS_KEY": "it has a byte that is 0",
        "S3_CA": "Is a directory",
    }
    (tmp_path / "HF_TOKEN").write_bytes(b"\xff")
    take_credentials(tmp_path, known)
    assert os.environ["HF_TOKEN"] == "good", "until the Secret is corrected"
    (tmp_path / "HF_TOKEN").unlink()
    take_credentials(tmp_path, known)
    assert "HF_TOKEN" not in os.environ


@pytest.mark.slow  # waits for the program's looks at the list
def test_the_list_is_followed_until_the_pod_ends(hub: FakeHub, tmp_path: Path) -> None:
    hub.files = adapter_files()
    wanted, folder = tmp_path / "wanted.json", tmp_path / "adapters"
    folder.mkdir()
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "AWS_SECRET_ACCESS_KEY").write_bytes(b"\xff")  # stops nothing
    hub.token = "secret"
    command = [sys.executable, "-m", "octavo_inference.sync_adapters", "--wanted", str(wanted), "--to", str(folder)]
    command += ["--credentials", str(keys), "--limit", "10000000"]
    source = f"hf://org/tiny@{COMMIT}"
    with subprocess.Popen(command, env={**os.environ, "HF_ENDPOINT": hub.url}) as program:
        try:
            eventually((folder / "list.json").exists)
            (keys / "HF_TOKEN").write_text("secret")  # the Secret is made when the pod runs
            wanted.write_bytes(encode_wanted([WantedAdapter(name="sql", source=source)]))
            eventually(lambda: decode_list((folder / "list.json").read_bytes()))
            (listed,) = decode_list((folder / "list.json").read_bytes())
            assert (listed.name, listed.source) == ("sql", source)
            assert (Path(listed.path) / "adapter_model.safetensors").read_bytes() == hub.files[
                "adapter_model.safetensors"
            ]
            program.send_signal(signal.SIGTERM)
            assert program.wait(30) == 128 + signal.SIGTERM
        finally:
            program.kill()
