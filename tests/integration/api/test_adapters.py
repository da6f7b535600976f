"""Adapters of a running server: loaded at its start, from a list that changes, and by request, under traffic."""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tests.support.adapters import save_adapter, save_added
from tests.support.waiting import eventually

from octavo_inference.tokenizer.assets import load_assets
from octavo_protocol.adapters import ListedAdapter, encode_list

from .conftest import Running, Start

LAYERS, HIDDEN = 30, 576


def adapter(folder: Path, seed: int, size: float = 0.02, rank: int = 16) -> Path:
    """Changes of SmolLM2's queries and outputs."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for layer in range(LAYERS):
        for module in ("q_proj", "o_proj"):
            name = f"model.layers.{layer}.self_attn.{module}"
            tensors[f"{name}.lora_A.weight"] = rng.standard_normal((rank, HIDDEN)).astype(np.float32)
            tensors[f"{name}.lora_B.weight"] = (rng.standard_normal((HIDDEN, rank)) * size).astype(np.float32)
    return save_adapter(folder, tensors, r=rank, lora_alpha=rank, base_model_name_or_path="HuggingFaceTB/SmolLM2-135M")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    for seed in range(5):
        adapter(folder / f"a{seed}", seed)
    return folder


@pytest.fixture(scope="module")
def listed(root: Path) -> Path:
    return root / "list.json"


@pytest.fixture(scope="module")
def server(start: Start, root: Path, listed: Path) -> Running:
    write(listed, root, "one", "two")
    flags = (
        "--max-loaded-adapters",
        "2",
        "--max-added-tokens",
        "3",
        "--adapters-file",
        str(listed),
        "--adapter-root",
        str(root),
    )
    return start(*flags, "--adapter", f"fixed={root / 'a4'}")


def write(file: Path, root: Path, *names: str, **sources: str) -> None:
    """A list of adapters, whose folders are a0, a1 and so on unless `sources` says otherwise."""
    adapters = [
        ListedAdapter(name=name, path=str(root / sources.get(name, f"a{number}")), source=sources.get(name, "first"))
        for number, name in enumerate(names)
    ]
    new = file.with_suffix(".new")
    new.write_bytes(encode_list(adapters))
    new.rename(file)


def states(server: Running) -> dict[str, str]:
    return {each["name"]: each["state"] for each in server.load()["adapters"]}


def answer(server: Running, model: str) -> str:
    return server.chat(model=model)["choices"][0]["message"]["content"]


def test_those_of_the_start_are_there_when_the_server_is_ready(server: Running) -> None:
    assert sorted(states(server).values()) == ["cached", "loaded", "loaded"]
    assert server.load()["max_loaded_adapters"] == 2
    models = {each["id"]: each for each in server.api.get("/v1/models").json()["data"]}
    assert set(models) == {"smollm2", "fixed", "one", "two"}
    assert models["one"]["parent"] == "smollm2"
    assert models["smollm2"]["parent"] is None
    answers = {name: answer(server, name) for name in models}
    assert len(set(answers.values())) == 4
    assert {name: answer(server, name) for name in models} == answers


def test_each_has_prefixes_of_its_own(server: Running) -> None:
    long = "Tell me a story about a lighthouse and the sea. " * 12
    used = [
        server.chat(long, model=name)["usage"]["prompt_tokens_details"] for name in ("one", "two", "smollm2", "one")
    ]
    assert [each["cached_tokens"] > 64 for each in used] == [False, False, False, True]


def test_a_name_that_is_not_there_is_a_404(server: Running) -> None:
    response = server.api.post("/v1/chat/completions", json=server.body(model="three"))
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


def test_load_and_unload_by_request(server: Running, root: Path) -> None:
    loaded = server.admin.post("/v1/load_lora_adapter", json={"lora_name": "three", "lora_path": "a2"})
    assert loaded.status_code == 200, loaded.text
    assert loaded.text == "Success: LoRA adapter 'three' added successfully."
    first = answer(server, "three")
    again = {"lora_name": "three", "lora_path": str(root / "a3")}
    refused = server.admin.post("/v1/load_lora_adapter", json=again)
    assert refused.status_code == 400
    assert "is loaded already; unload it first, or set load_inplace" in refused.json()["error"]["message"]
    assert server.admin.post("/v1/load_lora_adapter", json=again | {"load_inplace": True}).status_code == 200
    assert answer(server, "three") != first
    unloaded = server.admin.post("/v1/unload_lora_adapter", json={"lora_name": "three"})
    assert unloaded.text == "Success: LoRA adapter 'three' removed successfully."
    assert server.admin.post("/v1/unload_lora_adapter", json={"lora_name": "three"}).status_code == 404
    assert "three" not in states(server)


def test_an_adapter_adds_tokens(server: Running, root: Path) -> None:
    own = server.api.get("/tokenizer_info").json()["vocab_size"]
    save_added(root / "added", load_assets("smollm2").tokenizer.to_str(), own, HIDDEN)
    load = {"lora_name": "added", "lora_path": "added"}
    assert server.admin.post("/v1/load_lora_adapter", json=load).status_code == 200
    asked = {"model": "added", "prompt": "Once upon a time<note>", "temperature": 0, "max_tokens": 24}
    tokens = server.api.post("/tokenize", json={"model": "added", "prompt": asked["prompt"]}).json()["tokens"]
    assert tokens[-1] == own
    shown = server.api.post("/detokenize", json={"model": "added", "tokens": tokens}).json()["prompt"]
    assert shown == asked["prompt"]
    [choice] = server.api.post("/v1/completions", json=asked | {"skip_special_tokens": False}).json()["choices"]
    assert choice["finish_reason"] == "stop"
    banned = {"logit_bias": {str(own + 1): -100}}
    [choice] = server.api.post("/v1/completions", json=asked | banned).json()["choices"]
    assert choice["finish_reason"] == "length"
    [counted] = server.api.post("/v1/completions", json=asked | {"prompt": tokens}).json()["choices"]
    assert counted["finish_reason"] == "stop"
    for model, prompt, limit in (("added", [5, own + 2], own + 2), ("one", [5, own], own), ("smollm2", [5, own], own)):
        refused = server.api.post("/v1/completions", json=asked | {"model": model, "prompt": prompt})
        assert refused.status_code == 400, refused.text
        assert str(limit) in refused.json()["error"]["message"]
        assert "prompt" in refused.json()["error"]["message"]
    for field in ({"logit_bias": {str(own): 1}}, {"allowed_token_ids": [own]}, {"stop_token_ids": [own]}):
        for model in ("one", "smollm2"):
            refused = server.api.post("/v1/completions", json=asked | {"model": model, "prompt": "Hi"} | field)
            assert refused.status_code == 400, refused.text
            assert next(iter(field)) in refused.json()["error"]["message"]
    assert server.admin.post("/v1/unload_lora_adapter", json={"lora_name": "added"}).status_code == 200


def test_an_adapter_is_prompted_with_its_own_chat_template(server: Running, root: Path) -> None:
    shutil.copytree(root / "a2", root / "own")
    (root / "own" / "chat_template.jinja").write_text("Q: {{ messages[-1].content }} A:")
    load = {"lora_name": "own", "lora_path": "own"}
    assert server.admin.post("/v1/load_lora_adapter", json=load).status_code == 200
    asked = {"model": "own", "messages": [{"role": "user", "content": "Hi"}]}
    tokens = server.api.post("/tokenize", json=asked).json()["tokens"]
    shown = server.api.post("/detokenize", json={"model": "own", "tokens": tokens}).json()["prompt"]
    assert shown == "Q: Hi A:"
    assert server.chat("Hi", model="own")["usage"]["prompt_tokens"] == len(tokens)
    (root / "own" / "chat_template.jinja").write_text("{% if %}")
    refused = server.admin.post("/v1/load_lora_adapter", json=load | {"load_inplace": True})
    assert refused.status_code == 400
    assert "chat template, line 1" in refused.json()["error"]["message"]
    assert server.chat("Hi", model="own")["usage"]["prompt_tokens"] == len(tokens)
    assert server.admin.post("/v1/unload_lora_adapter", json={"lora_name": "own"}).status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"lora_name": "x", "lora_path": "../../etc"}, 400, "is not within --adapter-root"),
        ({"lora_name": "x", "lora_path": "/etc"}, 400, "is not within --adapter-root"),
        ({"lora_name": "x", "lora_path": "nothing"}, 404, "there is no folder 'nothing'"),
        ({"lora_name": "../x", "lora_path": "a0"}, 400, "lora_name"),
        ({"lora_name": "smollm2", "lora_path": "a0"}, 400, "is a name of the model itself"),
        ({"lora_name": "x", "lora_path": "bad"}, 400, "the model needs \\(576, 16\\); it was trained on another base"),
        ({"lora_name": "x", "lora_path": "large"}, 400, "a rank of 128; the server takes up to 64"),
        ({"lora_name": "x"}, 400, "lora_path"),
        ({"lora_name": "x", "lora_path": "a0", "lora_int_id": 1}, 400, "lora_int_id"),
    ],
)
def test_what_cannot_be_loaded_is_refused_and_the_server_goes_on(
    server: Running, root: Path, body: dict, status: int, words: str
) -> None:
    rows = {"model.layers.0.self_attn.q_proj.lora_A.weight": np.ones((16, 576), np.float32)}
    rows["model.layers.0.self_attn.q_proj.lora_B.weight"] = np.ones((32, 16), np.float32)
    save_adapter(root / "bad", rows, r=16)
    adapter(root / "large", 9, rank=128)
    response = server.admin.post("/v1/load_lora_adapter", json=body)
    assert response.status_code == status, response.text
    assert re.search(words, response.json()["error"]["message"]), response.text
    assert "x" not in states(server)
    assert answer(server, "one")


def test_those_of_the_list_are_changed_by_the_list_alone(server: Running) -> None:
    for path, body in (("unload", {}), ("load", {"lora_path": "a3", "load_inplace": True})):
        refused = server.admin.post(f"/v1/{path}_lora_adapter", json={"lora_name": "one"} | body)
        assert refused.status_code == 400
        assert "is in --adapters-file; change that list instead" in refused.json()["error"]["message"]


def test_the_public_port_loads_none(server: Running) -> None:
    assert server.api.post("/v1/load_lora_adapter", json={"lora_name": "x", "lora_path": "a0"}).status_code == 404


def test_adapters_are_swapped_under_traffic_without_a_failed_request(server: Running, root: Path, listed: Path) -> None:
    failures: list[str] = []
    done = threading.Event()
    counts = {"answers": 0}

    def ask(name: str) -> None:
        while not done.is_set():
            response = server.api.post("/v1/chat/completions", json=server.body(model=name, max_tokens=6))
            counts["answers"] += 1
            if response.status_code != 200:
                failures.append(f"{name}: {response.text}")

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("one", "two", "fixed", "smollm2")]
    for thread in threads:
        thread.start()
    before = answer(server, "two")
    try:
        write(listed, root, "one", "two", "new")
        eventually(lambda: states(server).get("new") in {"cached", "loaded"})
        answer(server, "new")
        write(listed, root, "one", "two", two="a3")
        eventually(lambda: "new" not in states(server))
        eventually(lambda: states(server)["two"] != "loading")
        changed = answer(server, "two")
        write(listed, root, "one", "two")
        eventually(lambda: answer(server, "two") == before)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not failures, failures[:3]
    assert changed != before
    assert counts["answers"] > 20


def test_a_list_that_is_damaged_changes_nothing(server: Running, root: Path, listed: Path) -> None:
    before = states(server)
    for damaged, problem in ((b'[{"name": "one"', "truncated"), (b'[{"name": "\xff"}]', "utf-8")):
        listed.write_bytes(damaged)
        eventually(lambda problem=problem: re.search(f"cannot be used: .*{problem}", server.log))
        assert states(server) == before
    write(listed, root, "one", "two")


def test_one_that_fails_says_so_in_the_report_and_in_answers(server: Running, root: Path, listed: Path) -> None:
    wanted = [
        ListedAdapter(name="one", path=str(root / "a0"), source="first"),
        ListedAdapter(name="two", path=str(root / "a1"), source="first"),
        ListedAdapter(name="gone", failure="no such repository"),
        ListedAdapter(name="smollm2", path=str(root / "a2")),
    ]
    listed.write_bytes(encode_list(wanted))
    eventually(lambda: states(server).get("gone") == "failed")
    reports = {each["name"]: each for each in server.load()["adapters"]}
    assert reports["gone"]["failure"] == "no such repository"
    assert "a name of the model itself" in reports["smollm2"]["failure"]
    assert "gone" not in [each["id"] for each in server.api.get("/v1/models").json()["data"]]
    response = server.api.post("/v1/chat/completions", json=server.body(model="gone"))
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "adapter_unavailable"
    assert "no such repository" not in response.text, "reasons may have paths and names of Secrets"
    assert "no such repository" in server.log
    write(listed, root, "one", "two")
    eventually(lambda: "gone" not in states(server))


def test_adapters_come_back_after_a_sleep(server: Running) -> None:
    before = answer(server, "one")
    assert server.admin.post("/v1/octavo/sleep").status_code == 200
    assert server.admin.post("/v1/octavo/wake_up").status_code == 200
    assert answer(server, "one") == before


def test_metrics_name_the_adapters(server: Running) -> None:
    text = server.admin.get("/metrics").text
    [line] = re.findall(r"^vllm:lora_requests_info\{(.*)\} (.*)$", text, re.MULTILINE)
    assert line[0] == 'max_lora="2",running_lora_adapters="",waiting_lora_adapters=""'
    assert abs(float(line[1]) - time.time()) < 60
    assert 'octavo:adapters{model_name="smollm2",state="loaded"} 2.0' in text


def test_a_server_without_slots_says_so(start: Start, root: Path) -> None:
    plain = start()
    refused = plain.admin.post("/v1/load_lora_adapter", json={"lora_name": "x", "lora_path": str(root / "a0")})
    assert refused.status_code == 400
    assert "start it with --max-loaded-adapters above 0" in refused.json()["error"]["message"]
    assert json.loads(plain.admin.get("/v1/octavo/load").text)["adapters"] == []
