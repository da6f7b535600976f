"""The script that `helm test` runs."""

import hashlib
import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "charts" / "octavo" / "files" / "test.py"
HASHED = f"sha256:{hashlib.sha256(b'k').hexdigest()}"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("# people\n\nalpha\nbeta\n", "alpha"),
        (f"{HASHED}\nbeta\n", "beta"),
        (HASHED, None),
        ("", None),
        ("keys:\n- {name: a, key: alpha}", "alpha"),
        (f"# c\nkeys:\n- {{name: a, key: '{HASHED}'}}\n- {{name: b, key: ['{HASHED}', beta]}}", "beta"),
        ("keys:\n- {name: a, key: alpha, expires: 2020-01-01}\n- {name: b, key: beta}", "beta"),
        ('{"keys": [{"name": "a", "key": "alpha"}]}', "alpha"),
    ],
)
def test_a_key_in_clear_is_found_in_every_form_of_the_key_file(text: str, key: str | None) -> None:
    assert runpy.run_path(str(SCRIPT))["clear_key"](text) == key
