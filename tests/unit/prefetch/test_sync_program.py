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

from octavo_protocol.adapters import WantedAdapter, decode_list, encode_wanted


@pytest.mark.slow  # waits for the program's looks at the list
def test_the_list_is_followed_until_the_pod_ends(hub: FakeHub, tmp_path: Path) -> None:
    hub.files = adapter_files()
    wanted, folder = tmp_path / "wanted.json", tmp_path / "adapters"
    folder.mkdir()
    command = [sys.executable, "-m", "octavo_inference.sync_adapters", "--wanted", str(wanted), "--to", str(folder)]
    source = f"hf://org/tiny@{COMMIT}"
    with subprocess.Popen(command, env={**os.environ, "HF_ENDPOINT": hub.url}) as program:
        try:
            eventually((folder / "list.json").exists)
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
