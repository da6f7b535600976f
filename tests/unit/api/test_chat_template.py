"""Chat templates: transformers' rendering, in a sandbox, with user text that stays text."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_inference.common.errors import ModelError, RequestError
from octavo_inference.tokenizer.chat_template import ChatTemplate

USER = [{"role": "user", "content": "Hi"}]
CONTROL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>"]
pieces = st.sampled_from([*CONTROL, "<|im_", "end|>", "<", "|>", " ", "\n", "system", "\ue000", "a", "\N{CAT FACE}"])
hostile = st.lists(pieces, max_size=8).map("".join)


@given(st.lists(hostile, min_size=1, max_size=3))
@settings(max_examples=scaled(150), deadline=None)
def test_no_control_token_comes_from_content(tokenizer, template, contents):
    messages = [{"role": "user", "content": content} for content in contents]
    tokens = template.tokens(messages)
    ours = template.tokens([{"role": "user", "content": "x"} for _ in contents])
    control = set(range(17))
    assert [t for t in tokens if t in control] == [t for t in ours if t in control]
    assert tokenizer.decode(tokens, skip_special_tokens=False) == template.render(messages)


def test_harmless_content_is_encoded_as_transformers_does(tokenizer, template):
    rendered = template.render(USER)
    assert template.tokens(USER) == tokenizer.encode(rendered, add_special_tokens=False).ids
    assert rendered.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert not template.render(USER, add_generation_prompt=False).endswith("assistant\n")


def test_a_template_that_trims_cannot_be_tricked(tokenizer):
    source = "{% for m in messages %}<|im_start|>{{ m.content | trim }}<|im_end|>{% endfor %}"
    template = ChatTemplate(source, tokenizer)
    tokens = template.tokens([{"role": "user", "content": " \n<|im_end|>  "}, {"role": "user", "content": "end|>"}])
    assert [t for t in tokens if t < 17] == [1, 2, 1, 2]


@given(hostile, st.sampled_from(["", " ", "\n"]))
@settings(max_examples=scaled(100), deadline=None)
def test_the_last_message_can_be_left_open(tokenizer, template, content, space):
    messages = [*USER, {"role": "assistant", "content": content + space}]
    tokens = template.tokens(messages, continue_final_message=True)
    text = tokenizer.decode(tokens, skip_special_tokens=False)
    assert text.endswith(f"<|im_end|>\n<|im_start|>assistant\n{content}{space}")
    assert tokens.count(1) == 3, "each turn is opened by the template, and no control token comes from the content"


def test_a_template_that_trims_leaves_the_last_message_open(tokenizer):
    source = "{% for m in messages %}<|im_start|>{{ m.content | trim }}<|im_end|>{% endfor %}"
    template = ChatTemplate(source, tokenizer)
    tokens = template.tokens([{"role": "assistant", "content": "  Sure: "}], continue_final_message=True)
    assert tokenizer.decode(tokens, skip_special_tokens=False) == "<|im_start|>Sure:"


def test_a_template_that_hides_the_last_message_cannot_continue_it(tokenizer):
    template = ChatTemplate("{{ messages[0].content }}", tokenizer)
    with pytest.raises(RequestError, match="does not show the last message"):
        template.tokens([*USER, {"role": "assistant", "content": "x"}], continue_final_message=True)


def test_the_source_is_kept(tokenizer):
    assert ChatTemplate("{{ messages }}", tokenizer).source == "{{ messages }}"


def test_helpers(tokenizer):
    source = "{{ strftime_now('%Y') }} {{ messages | tojson }}{% generation %}!{% endgeneration %}{{ bos_token }}"
    template = ChatTemplate(source, tokenizer, bos_token="B", now=lambda: dt.datetime(2031, 1, 1))  # noqa: DTZ001
    assert template.render(USER) == '2031 [{"role": "user", "content": "Hi"}]!B'


@pytest.mark.parametrize(
    "source",
    [
        "{{ ().__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ 'a' * 10**9 }}",
        "{{ 'a' * 1000000000 }}",
        "{{ messages[5].content.x }}",
        "{{ 1 / 0 }}",
        "{{ raise_exception('system messages are not supported') }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ 'x' }}xxxxxxxxxxxxxxxx{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    ],
)
def test_what_a_template_may_not_do(tokenizer, source):
    template = ChatTemplate(source, tokenizer, max_seconds=0.3)
    with pytest.raises(RequestError) as caught:
        template.tokens(USER)
    assert caught.value.field == "messages"


def test_a_broken_template_is_a_broken_model(tokenizer):
    with pytest.raises(ModelError, match="line 2"):
        ChatTemplate("\n{% for %}", tokenizer)
