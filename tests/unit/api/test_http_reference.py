"""docs/reference/http.md is what the endpoints say."""

from __future__ import annotations

from pathlib import Path

from octavo_inference.server.openapi import reference

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_is_up_to_date():
    assert (ROOT / reference.PAGE).read_text() == reference.page(), "run `make generate`"


def test_check_fails_on_another_page(tmp_path, capsys):
    (tmp_path / reference.PAGE).parent.mkdir(parents=True)
    (tmp_path / reference.PAGE).write_text("old")
    assert reference.main(["--check", "--root", str(tmp_path)]) == 1
    assert "run `make generate`" in capsys.readouterr().out
    assert (tmp_path / reference.PAGE).read_text() == "old"


def test_the_page_is_written(tmp_path):
    (tmp_path / reference.PAGE).parent.mkdir(parents=True)
    assert reference.main(["--root", str(tmp_path)]) == 0
    assert reference.main(["--check", "--root", str(tmp_path)]) == 0
    assert (tmp_path / reference.PAGE).read_text() == reference.page()
