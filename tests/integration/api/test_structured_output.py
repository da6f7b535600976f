"""Structured output of the real model through the real server: each constraint holds, with every other option."""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import psutil
import pytest
from anthropic import Anthropic
from openai import OpenAI
from tests.support.waiting import eventually

MODEL = "smollm2"
WORKER = "octavo_inference.server.grammars.worker"
CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12, "pattern": "^[A-Z][a-z]*$"},
        "people": {"type": "integer", "minimum": 1, "maximum": 99999},
        "in": {"enum": ["Europe", "Asia", "Africa"]},
    },
    "required": ["name", "people", "in"],
    "additionalProperties": False,
}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
CALL = {"begin": "<city>", "schema": CITY, "end": "</city>"}


@pytest.fixture(scope="module")
def server(start):
    return start()


def text(server, **fields) -> str:
    [choice] = server.chat("Name a city. Answer in JSON.", max_tokens=96, **fields)["choices"]
    assert choice["finish_reason"] == "stop", choice
    return choice["message"]["content"]


def is_city(answer: str) -> bool:
    jsonschema.validate(json.loads(answer), CITY)
    return True


def test_a_schema_is_satisfied_in_the_fixed_style(server):
    answer = text(server, response_format=SCHEMA)
    assert is_city(answer)
    assert answer == json.dumps(json.loads(answer))
    not_strict = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    assert text(server, response_format=not_strict) == answer


def test_json_object_is_an_object_for_any_prompt(server):
    answer = server.chat("Hello", max_tokens=600, response_format={"type": "json_object"}, temperature=0)["choices"][0]
    if answer["finish_reason"] == "stop":
        assert isinstance(json.loads(answer["message"]["content"]), dict)
    assert answer["message"]["content"].startswith("{")


@pytest.mark.parametrize(
    ("outputs", "pattern"),
    [
        ({"regex": r"\d{3}-\d{4}"}, r"\d{3}-\d{4}"),
        ({"choice": ["Paris", "Rome", 'a/b "c"\n']}, r'Paris|Rome|a/b "c"\n'),
        ({"grammar": 'start: NAME " is " /[0-9]{2}/\nNAME: "Rome" | "Oslo"'}, "(Rome|Oslo) is [0-9]{2}"),
        ({"grammar": 'root ::= "(" root ")" | digit\ndigit ::= [0-9]'}, r"\(*[0-9]\)*"),
        ({"json": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}}, r"\[((true|false)(, )?)*\]"),
        ({"json": json.dumps({"const": {"a": [1]}}), "disable_any_whitespace": True}, r'\{"a":\[1\]\}'),
        (
            {"structural_tag": json.dumps({"type": "structural_tag", "format": {"type": "sequence", "elements": [
                {"type": "const_string", "value": "<a>"}, {"type": "regex", "pattern": "[a-z]{3}"}]}})},
            "<a>[a-z]{3}",
        ),
    ],
    ids=["regex", "choice", "lark", "ebnf", "json", "compact", "structural_tag"],
)  # fmt: skip
def test_each_kind_of_structured_output(server, outputs, pattern):
    answer = text(server, structured_outputs=outputs)
    assert re.fullmatch(pattern, answer), answer
    body = {"model": MODEL, "prompt": "A city:", "max_tokens": 64, "temperature": 0, "structured_outputs": outputs}
    [choice] = server.api.post("/v1/completions", json=body).json()["choices"]
    assert re.fullmatch(pattern, choice["text"]), choice


def test_a_structural_tag_lets_text_be_and_constrains_what_follows_its_trigger(server):
    tag = {"type": "structural_tag", "structures": [CALL], "triggers": ["<city>"]}
    answer = server.chat("Say hello.", max_tokens=24, response_format=tag)["choices"][0]["message"]["content"]
    assert answer
    forced = {"type": "triggered_tags", "triggers": ["<city>"], "at_least_one": True, "stop_after_first": True}
    body = {"type": "json_schema", "json_schema": CITY}
    forced["tags"] = [{"type": "tag", "begin": "<city>", "content": body, "end": "</city>"}]
    answer = text(server, response_format={"type": "structural_tag", "format": forced})
    assert is_city(answer.removeprefix("<city>").removesuffix("</city>"))


@pytest.mark.parametrize(
    "options",
    [
        {"n": 3, "temperature": 1.0, "seed": 1},
        {"temperature": 1.5, "presence_penalty": 1.0, "frequency_penalty": 1.0, "repetition_penalty": 1.2, "seed": 2},
        {"logprobs": True, "top_logprobs": 3},
        {"min_tokens": 4},
        {"stop": ["\n"]},
        {"logit_bias": {"12": -50}, "bad_words": ["Paris"]},
        {"top_k": 1},
        {"ignore_eos": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_schema_holds_with_every_other_option(server, options):
    answer = server.chat("Name a city.", max_tokens=96, response_format=SCHEMA, **({"temperature": 0} | options))
    assert len(answer["choices"]) == options.get("n", 1)
    for choice in answer["choices"]:
        assert is_city(choice["message"]["content"])
        if "logprobs" in options:
            tokens = "".join(entry["token"] for entry in choice["logprobs"]["content"])
            assert tokens.startswith(choice["message"]["content"])


def test_a_stream_has_the_whole_answer(server):
    body = server.body("Name a city.", max_tokens=96, response_format=SCHEMA, stream=True)
    answer = ""
    with server.api.stream("POST", "/v1/chat/completions", json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                answer += json.loads(line.removeprefix("data: "))["choices"][0]["delta"].get("content", "")
    assert is_city(answer)


def test_a_stop_text_ends_a_constrained_answer(server):
    [choice] = server.chat("Name a city.", response_format=SCHEMA, stop=[", "], max_tokens=64)["choices"]
    assert choice["finish_reason"] == "stop"
    assert re.fullmatch(r'\{"name": "[A-Z][a-z]*"', choice["message"]["content"])


def test_the_official_clients(server):
    url = str(server.api.base_url)
    openai = OpenAI(base_url=f"{url}/v1", api_key="none")
    answer = openai.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "Name a city."}], response_format=SCHEMA, max_tokens=96
    )
    assert is_city(answer.choices[0].message.content)
    response = openai.responses.create(
        model=MODEL,
        input="Name a city.",
        text={"format": {"type": "json_schema", "name": "city", "schema": CITY, "strict": True}},
        max_output_tokens=96,
    )
    assert is_city(response.output_text)
    assert response.text.format.schema_ == CITY
    message = Anthropic(base_url=url, api_key="none").messages.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Name a city."}],
        output_config={"format": {"type": "json_schema", "schema": CITY}},
        max_tokens=96,
    )
    assert is_city(message.content[0].text)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type", "'xml' is not supported; supported: 'json"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "this field is required"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"not": {}}}}},
            "response_format.json_schema.schema",
            "keyword 'not' is not supported; supported: type, enum",
        ),
        (
            {"response_format": {"type": "json_object", "json_schema": {"name": "a", "schema": {}}}},
            "response_format.json_schema",
            "only with type 'json_schema', not with 'json_object'",
        ),
        ({"response_format": SCHEMA, "structured_outputs": {"regex": "a"}}, "structured_outputs", "give one of them"),
        ({"structured_outputs": {}}, "structured_outputs", "give exactly one of json"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs.regex", "unclosed group"),
        ({"structured_outputs": {"grammar": "start: ("}}, "structured_outputs.grammar", "line 1, column 9"),
        ({"structured_outputs": {"guided": 1}}, "structured_outputs.guided", "no such field"),
    ],
)  # fmt: skip
def test_mistakes_name_the_field_and_the_fix(server, fields, param, message):
    response = server.api.post("/v1/chat/completions", json=server.body() | fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert message in error["message"]
    assert error["message"].startswith(f"{param}: ")


TAGS = [CALL | {"begin": f"<{n}>"} for n in range(200)]
HOSTILE = {
    "exponential": {"regex": "(a+)+b" + "(.*a){20}"},
    "large counts": {"regex": r"[\w]{1,10000}"},
    "counts of counts": {"regex": "(((a{0,99}){0,99}){0,99}){0,99}"},
    "counts of counts in Lark": {"grammar": 'start: "a" | C\nA: "a"{0,99}\nB: A{0,99}\nC: B{0,99}\n'},
    "many alternatives": {"grammar": "start: " + " | ".join(f'"{n}" start' for n in range(4000))},
    "left recursion": {"grammar": 'start: start start | start "a" | "b"'},
    "no end": {"grammar": "start: start"},
    "ambiguous": {"grammar": 'start: a a a a a a\na: a a | "x"? | a "x"'},
    "long lines of rules": {"grammar": "root ::= r0\n" + "".join(f"r{n} ::= r{n + 1} r{n + 1}\n" for n in range(99))},
    "look-around": {"regex": "(?=a)b(?!c)"},
    "back reference": {"regex": r"(a)\1"},
    "not Unicode": {"regex": "(?-u:\\xff)"},
    "deep groups": {"regex": "(" * 20_000 + "a" + ")" * 20_000},
    "deep schema": {"json": json.dumps(json.loads('{"items":' * 200 + "{}" + "}" * 200))},
    "cycle": {"json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}},
    "cycle of allOf": {"json": {"$ref": "#", "allOf": [{"$ref": "#"}, {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}]}},
    "unions of unions": {"json": {"allOf": [{"anyOf": [{"minLength": n + m} for n in range(30)]} for m in range(20)]}},
    "optional properties": {"json": {"type": "object", "properties": {f"p{n}": {} for n in range(3000)}}},
    "patterns": {"json": {"type": "string", "pattern": "^(\\w*\\d){40}$", "maxLength": 5000}},
    "bomb behind a text": {"grammar": 'start: "a"{60} /(?:(?:(?:(?:x{100}){100}){100}){100})/'},
    "long enum": {"json": {"enum": [f"{n:050}" for n in range(10_000)]}},
    "whitespace": {"json_object": True, "whitespace_pattern": "([ ]*[ ]*)*"},
    "tags": {"structural_tag": json.dumps({"triggers": ["<"], "structures": [*TAGS]})},
}  # fmt: skip


def test_hostile_grammars_cost_their_requests_only(server):
    """One client sends hostile grammars, another one ordinary requests: no failure there, and no restart."""
    engine = server.engine.pid
    ordinary: list[int] = []
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            fields = {"response_format": SCHEMA} if len(ordinary) % 2 else {}
            response = server.api.post("/v1/chat/completions", json=server.body(max_tokens=64, **fields))
            ordinary.append(response.status_code)
            assert server.api.get("/livez").status_code == 200

    with ThreadPoolExecutor() as pool:
        asking = pool.submit(ask)
        answers = {}
        for name, outputs in HOSTILE.items():
            body = server.body(max_tokens=8, structured_outputs=outputs)
            response = server.api.post("/v1/chat/completions", json=body)
            answers[name] = response.status_code, response.text[:300]
        done.set()
        asking.result()
    assert {status for status, _ in answers.values()} <= {200, 400}, answers
    assert set(ordinary) == {200}
    assert server.engine.pid == engine
    eventually(lambda: (server.load()["running"], server.load()["waiting"]) == (0, 0))
    is_city(text(server, response_format=SCHEMA))


def test_metrics_count_and_the_memory_plan_has_the_grammar_process(server):
    text(server, response_format=SCHEMA)
    text(server, response_format=SCHEMA)
    metrics = server.admin.get("/metrics").text
    found = dict(re.findall(r"^octavo:(grammar_\w+){[^}]*} (\S+)$", metrics, re.MULTILINE))
    assert float(found["grammar_cache_hits_total"]) >= 1
    assert float(found["grammar_check_seconds_count"]) >= 1
    assert 'octavo:grammar_refusals_total{model_name="smollm2",reason="invalid"}' in metrics
    resident = float(re.search(r'process_resident_bytes{.*process="grammars"} (\S+)', metrics)[1])
    assert 20e6 < resident < 128 * 2**20
    server.child(WORKER)


def test_the_first_grammar_finds_all_prepared(start):
    server = start()
    eventually(lambda: "ready for grammars" in server.log)
    eventually(lambda: has_worker(server))
    worker = server.child(WORKER)
    is_city(text(server, response_format=SCHEMA))
    assert server.child(WORKER) == worker
    assert server.log.count("ready for grammars") == 1


def test_grammars_from_the_first_moment_on(start):
    """None waits for a preparation: the first ones start all that they need."""
    server = start()
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda n: text(server, structured_outputs={"choice": [f"number {n}"]}), range(16))
    assert list(answers) == [f"number {n}" for n in range(16)]
    assert server.log.count("ready for grammars") == 1
    server.child(WORKER)


def has_worker(server) -> bool:
    return any(WORKER in found.cmdline() for found in psutil.Process(server.process.pid).children())


def test_the_grammar_process_ends_with_the_server(start):
    server = start()
    text(server, response_format=SCHEMA)
    child = server.child(WORKER)
    server.process.kill()
    eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
