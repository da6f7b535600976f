"""Documents drawn at random under the masks of 300 schemas: each satisfies its schema."""

from __future__ import annotations

import json
import random

import jsonschema
import numpy as np
import pytest

from bench.lib.schemas import COUNT, corpus, openapi
from octavo_inference.grammar.json_schema import check_schema
from octavo_inference.grammar.matcher import Matcher
from octavo_inference.grammar.sources import json_schema_rule, whole

CORPUS = corpus()
SHARE = 20
END = 256
CLOSING = [END, *b'"}],:']
# Checked by the validator without other libraries. "date" may be 29 February of any year.
FORMATS = jsonschema.FormatChecker(["ipv4", "ipv6", "uuid", "email"])


def document(matcher: Matcher, drawn: random.Random) -> str:
    """A text drawn under the masks of bytes; what ends something is as likely as all else together."""
    mask = np.zeros(9, np.int32)
    found = bytearray()
    while not matcher.is_complete:
        matcher.fill(mask)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:257]).tolist()
        closing = [token for token in CLOSING if token in allowed]
        token = drawn.choice(closing) if closing and drawn.random() < 0.5 else drawn.choice(allowed)
        if token == END:
            break
        matcher.consume(token)
        found.append(token)
        assert len(found) < 100_000
    return found.decode()


def test_there_are_300_different_schemas():
    assert len({json.dumps(schema) for _, schema in CORPUS}) > COUNT - 20
    assert len(CORPUS) == COUNT


@pytest.mark.parametrize("part", range(COUNT // SHARE))
def test_documents_satisfy_their_schemas(bytes_vocabulary, part):
    for number in range(part * SHARE, (part + 1) * SHARE):
        kind, schema = CORPUS[number]
        check_schema(schema, "schema")
        start = bytes_vocabulary.compile(whole(json_schema_rule(schema)))
        validator = jsonschema.Draft202012Validator(schema, format_checker=FORMATS)
        for seed in range(3):
            text = document(start.copy(), random.Random(seed))
            errors = [error.message[:200] for error in validator.iter_errors(json.loads(text))]
            assert not errors, (number, kind, text, errors)


def test_documents_mean_what_openapi_says(bytes_vocabulary):
    for number, (given, meant) in enumerate(openapi()):
        check_schema(given, "schema")
        start = bytes_vocabulary.compile(whole(json_schema_rule(given)))
        validator = jsonschema.Draft202012Validator(meant)
        for seed in range(5):
            text = document(start.copy(), random.Random(seed))
            errors = [error.message[:200] for error in validator.iter_errors(json.loads(text))]
            assert not errors, (number, text, errors)
