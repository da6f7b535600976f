"""The page at /: its files, the numbers that it shows, and the flag that takes it away."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from starlette.testclient import TestClient

from octavo_inference.server.auth import Keys
from octavo_inference.server.page.endpoints import FOLDER
from octavo_inference.server.public import public_app

HTML = (FOLDER / "page.html").read_text()
SCRIPT = (FOLDER / "page.js").read_text()


class Elements(HTMLParser):
    """Tags with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


ELEMENTS = Elements(HTML).found
IDS = {attributes["id"] for _, attributes in ELEMENTS if "id" in attributes}


async def test_the_page_and_its_files_are_served_without_a_key(serve, tmp_path):
    (tmp_path / "keys").write_text("secret\n")
    async with serve(keys=Keys(str(tmp_path / "keys"), "--api-key-file")) as server:
        page = await server.api.get("/")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert page.text == HTML
        assert "default-src 'none'" in page.headers["content-security-policy"]
        for _, attributes in ELEMENTS:
            for address in (attributes.get("src"), attributes.get("href")):
                if address and address.startswith("page/"):
                    assert (await server.api.get(f"/{address}")).status_code == 200
        assert (await server.api.get("/page/state")).status_code == 401
        state = await server.api.get("/page/state", headers={"Authorization": "Bearer secret"})
        assert state.status_code == 200


async def test_the_numbers_are_those_of_the_engine(serve):
    async with serve() as server:
        before = (await server.api.get("/page/state")).json()
        answer = await server.api.post("/v1/completions", json={"model": "m", "prompt": "a b", "max_tokens": 3})
        after = (await server.api.get("/page/state")).json()
    assert (before["models"], before["ready"], before["generates"]) == (["m", "alias"], True, True)
    assert before["version"] == "1.2.3"
    assert before["settings"]["max_model_len"] == "512"
    assert answer.status_code == 200
    assert after["load"].keys() == before["load"].keys()
    assert 0 <= after["load"]["kv_pool"] <= 1


async def test_while_the_model_loads_there_is_no_load(serve):
    async with serve(ready=False) as server:
        state = (await server.api.get("/page/state")).json()
    assert (state["ready"], state["load"], state["settings"]) == (False, None, {})


async def test_an_embedding_model_has_no_chat(serve):
    async with serve(task="embed") as server:
        assert (await server.api.get("/page/state")).json()["generates"] is False


async def test_without_the_page_its_paths_are_unknown(serve):
    async with serve() as server:
        client = TestClient(public_app(server.service, None, "1.2.3", page=False))
        assert [client.get(path).status_code for path in ("/", "/page/page.js", "/page/state")] == [404] * 3


def test_nothing_comes_from_other_hosts_and_nothing_is_inline() -> None:
    assert not re.search(r"https?://", HTML + SCRIPT + (FOLDER / "page.css").read_text())
    for tag, attributes in ELEMENTS:
        assert "style" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        assert tag != "style"
        assert tag != "script" or attributes["src"]


def test_every_field_has_a_label_and_the_script_knows_the_elements() -> None:
    labelled = {attributes["for"] for tag, attributes in ELEMENTS if tag == "label"}
    fields = {attributes["id"] for tag, attributes in ELEMENTS if tag in {"input", "textarea", "select"}}
    assert fields <= labelled
    assert set(re.findall(r'at\("([\w-]+)"\)', SCRIPT)) <= IDS
    assert {attributes["aria-describedby"] for _, attributes in ELEMENTS if "aria-describedby" in attributes} <= IDS
