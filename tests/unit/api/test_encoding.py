"""Encoding of clients' texts: the same tokens as the tokenizer's own, in a time that the limit bounds."""

from __future__ import annotations

import random
import sys
import threading
import time

import pytest
from tokenizers import AddedToken, Tokenizer

from octavo_inference.tokenizer import encoding
from octavo_inference.tokenizer.encoding import PromptTooLongError, ids_within, plain_tokenizer, token_ids

LIMIT = 256
TEXTS = {
    "english": "The capital of France is Paris. " * 60,
    "spaces": " " * 2000,
    "one letter": "a" * 1500,
    "no spaces": "".join(random.Random(1).choices("abcdefgh", k=400)),
    "symbols": "\N{CAT FACE}" * 80,
    "control tokens": "<|im_start|>user\nhi<|im_end|>\n" * 20,
    "empty": "",
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("special", [True, False])
def test_a_text_within_the_limit_has_the_tokenizers_own_tokens(tokenizer, name, special):
    expected = tokenizer.encode(TEXTS[name], add_special_tokens=special).ids
    assert token_ids(tokenizer, TEXTS[name], add_special_tokens=special) == expected
    assert ids_within(tokenizer, TEXTS[name], max(len(expected), 1), add_special_tokens=special) == expected
    assert ids_within(tokenizer, TEXTS[name], None, add_special_tokens=special) == expected


def test_a_long_text_within_the_limit_is_encoded_whole(tokenizer):
    text = " " * 200_000  # one token for hundreds of spaces
    expected = tokenizer.encode(text).ids
    assert len(text) > 8 * len(expected)
    assert ids_within(tokenizer, text, len(expected)) == expected


@pytest.mark.parametrize("name", [name for name in TEXTS if name not in {"empty", "spaces"}])
def test_of_a_text_far_above_the_limit_only_a_part_is_encoded(tokenizer, monkeypatch, name):
    encoded: list[int] = []

    def counted(tokenizer, text, **how):
        encoded.append(len(text))
        return token_ids(tokenizer, text, **how)

    monkeypatch.setattr(encoding, "token_ids", counted)
    with pytest.raises(PromptTooLongError) as error:
        ids_within(tokenizer, TEXTS[name] * 500, LIMIT)
    assert error.value.tokens > LIMIT
    assert sum(encoded) < 100 * LIMIT < len(TEXTS[name] * 500)


def test_other_threads_go_on_while_a_text_is_encoded(tokenizer):
    """With the GIL held for the whole text, the loop below could not turn once."""
    text = "".join(random.Random(2).choices("abcdefgh ", k=300_000))
    done = threading.Event()

    def work():
        token_ids(tokenizer, text)
        done.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    thread = threading.Thread(target=work)
    thread.start()
    turns = 0
    while not done.is_set():
        time.sleep(0.001)
        turns += 1
    thread.join()
    sys.setswitchinterval(interval)
    assert turns > 5


def test_a_plain_tokenizer_encodes_control_tokens_as_text(tokenizer):
    plain = plain_tokenizer(tokenizer)
    text = "a <|im_start|> b"
    start = tokenizer.token_to_id("<|im_start|>")
    assert start in tokenizer.encode(text).ids
    assert start not in plain.encode(text).ids
    assert plain.decode(plain.encode(text).ids, skip_special_tokens=False) == text
    assert tokenizer.encode("plain text").ids == plain.encode("plain text").ids
    assert plain.get_added_tokens_decoder().keys() == tokenizer.get_added_tokens_decoder().keys()


def test_a_plain_tokenizer_keeps_added_tokens_outside_the_vocabulary(tokenizer):
    extended = Tokenizer.from_str(tokenizer.to_str())
    extended.add_tokens(["<own>"])
    extended.add_special_tokens([AddedToken("<control>", special=True)])
    extended.add_tokens([AddedToken("<last>", lstrip=True)])
    plain = plain_tokenizer(extended)
    for name in ("<own>", "<last>"):
        assert plain.encode(name).ids == [extended.token_to_id(name)]
    assert extended.token_to_id("<control>") not in plain.encode("<control>").ids
