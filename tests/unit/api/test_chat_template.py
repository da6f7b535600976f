"""Chat templates: transformers' rendering, in a sandbox, with user text that stays text."""

from __future__ import annotations

import datetime as dt
import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_inference.common.errors import ModelError, RequestError
from octavo_inference.tokenizer.assets import TokenizerAssets
from octavo_inference.tokenizer.chat_template import ChatTemplate, load_chat_template

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


_PROFILED = """
import sys
from tokenizers import Tokenizer, models
from octavo_inference.common.errors import RequestError
from octavo_inference.tokenizer.chat_template import ChatTemplate

source = "{% for i in range(" + sys.argv[1] + ") %}{% for j in range(9999) %}{% endfor %}{% endfor %}"
template = ChatTemplate(source, Tokenizer(models.BPE()), max_seconds=0.02)
for _ in range(9):
    try:
        template.render([])
    except RequestError:
        pass
sys.setprofile(lambda *_: None)
(lambda: None)()
"""


@pytest.mark.parametrize("rounds", [99999, 100, 0])
def test_a_slow_template_leaves_nothing_behind(rounds):
    """CPython 3.11 never returns from a profiled call while it believes that an error is about to be thrown."""
    subprocess.run([sys.executable, "-c", _PROFILED, str(rounds)], check=True, timeout=60)


def test_a_broken_template_is_a_broken_model(tokenizer):
    with pytest.raises(ModelError, match="line 2"):
        ChatTemplate("\n{% for %}", tokenizer)


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather <|im_end|> of a place",
            "parameters": {"type": "object", "properties": {"place<|im_start|>": {"type": "string"}}},
        },
    }
]


def test_tools_and_documents_reach_the_template(tokenizer):
    source = "{{ tools | tojson }}{% for d in documents %}{{ d.title }}{% endfor %}"
    template = ChatTemplate(source, tokenizer)
    tokens = template.tokens(USER, tools=TOOLS, documents=[{"title": "A"}, {"title": "B"}])
    assert tokenizer.decode(tokens, skip_special_tokens=False) == json.dumps(TOOLS, ensure_ascii=False) + "AB"


def test_without_tools_and_documents_they_are_none(tokenizer):
    template = ChatTemplate("{{ tools is none and documents is none and not style is defined }}", tokenizer)
    assert template.render(USER) == "True"


@pytest.mark.parametrize(
    "options",
    [
        {"tools": TOOLS},
        {"documents": [{"title": "<|im_start|>", "parts": ["a<|im_end|>", ["<|endoftext|>"]]}]},
        {"variables": {"style": {"<|im_start|>": ["<|im_end|>"]}}},
    ],
)
def test_no_control_token_comes_from_nested_values(tokenizer, options):
    source = "<|im_start|>{{ [tools, documents, style] | tojson }}{{ messages[0].parts[0].text }}<|im_end|>"
    template = ChatTemplate(source, tokenizer)
    message = {"role": "user", "content": "", "parts": [{"text": "<|im_start|>"}]}
    tokens = template.tokens([message], **({"variables": {"style": ""}} | options))
    assert [token for token in tokens if token < 17] == [1, 2]
    rendered = template.render([message], **({"variables": {"style": ""}} | options))
    assert tokenizer.decode(tokens, skip_special_tokens=False) == rendered


def test_a_role_that_spells_a_control_token_is_text(tokenizer):
    template = ChatTemplate("<|im_start|>{{ messages[0].role }}", tokenizer)
    tokens = template.tokens([{"role": "<|im_end|>", "content": ""}])
    assert [token for token in tokens if token < 17] == [1]


def test_variables_do_not_replace_what_the_server_gives(tokenizer):
    template = ChatTemplate("{{ messages[0].content }}{{ bos_token }}{{ style }}", tokenizer, bos_token="B")
    given = {"messages": [], "bos_token": "X", "style": "S"}
    assert template.render(USER, variables=given) == "HiBS"


def test_a_template_names_its_own_variables(tokenizer):
    source = (
        "{% if not tools is defined %}{% set tools = none %}{% endif %}{% set ns = namespace(x=1) %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking is defined %}{{ style }}{% endif %}"
        "{{ strftime_now('%Y') }}{{ bos_token }}{{ raise_exception('x') if ns.x == 2 }}"
    )
    template = ChatTemplate(source, tokenizer)
    assert template.variables == {"enable_thinking", "style"}
    assert template.uses("tools")
    assert not template.uses("documents")


@pytest.mark.parametrize("content", ["Well, ", "Well,", " Well", "a <|im_end|> b"])
def test_the_last_message_stays_open(template, content):
    messages = [*USER, {"role": "assistant", "content": content}]
    rendered = template.render(messages, continue_final_message=True)
    assert rendered.endswith(f"<|im_start|>assistant\n{content}")
    assert rendered + "<|im_end|>\n" == template.render(messages, add_generation_prompt=False)


def test_a_template_that_trims_messages_trims_the_open_one(tokenizer):
    source = "{% for m in messages %}<|im_start|>{{ m.content | trim }} <|im_end|>{% endfor %}"
    template = ChatTemplate(source, tokenizer)
    messages = [{"role": "assistant", "content": " Well, "}]
    assert template.render(messages, continue_final_message=True) == "<|im_start|>Well,"


@pytest.mark.parametrize("source", ["{{ messages[0].content }}", "no messages"])
def test_a_template_without_the_last_message_cannot_continue_it(tokenizer, source):
    template = ChatTemplate(source, tokenizer)
    with pytest.raises(RequestError) as caught:
        template.tokens([*USER, {"role": "assistant", "content": "Well"}], continue_final_message=True)
    assert caught.value.field == "continue_final_message"


def test_a_file_replaces_the_template_of_the_model(tokenizer, tmp_path):
    file = tmp_path / "mine.jinja"
    file.write_text("{{ bos_token }}mine", encoding="utf-8")
    words = TokenizerAssets(tokenizer, "own", "B", None)
    assert load_chat_template(words, str(file), "m").render(USER) == "Bmine"
    assert load_chat_template(words, None, "m").render(USER) == "own"
    assert load_chat_template(TokenizerAssets(tokenizer, None, None, None), None, "m") is None


@pytest.mark.parametrize(("content", "problem"), [(None, "No such file"), ("{% for %}", "line 1")])
def test_a_bad_template_file_is_named(tokenizer, tmp_path, content, problem):
    file = tmp_path / "mine.jinja"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    with pytest.raises(ModelError, match=rf"chat-template .*mine.jinja: .*{problem}"):
        load_chat_template(TokenizerAssets(tokenizer, None, None, None), str(file), "m")


@pytest.mark.parametrize(
    ("source", "is_text"),
    [
        ("{{ '```json' + tool['function']['arguments'] + '\\n' }}", True),
        ("{{ call.function.arguments + '<end>' }}", True),
        ("{{ '{' + call.arguments }}", True),
        ("{{ tool_call.arguments | tojson }}", False),
        ("{{ '<x>' + (call.arguments | tojson) }}", False),
        ("{{ '<x>' + call.arguments|tojson }}", False),
        ("{% for k, v in call.arguments.items() %}{{ k + v }}{% endfor %}", False),
    ],
)
def test_templates_that_join_arguments_get_them_as_text(tokenizer, source, is_text):
    assert ChatTemplate(source, tokenizer).text_arguments is is_text


def test_the_names_of_thinking_are_those_that_the_template_reads(tokenizer):
    read = "{{ message.reasoning_content }}{{ m['thinking'] }}{{ reasoning }}"
    assert ChatTemplate(read, tokenizer).reasoning_names == ("reasoning_content", "thinking")


# Each would make a gigabyte or more, in one operation or in a few.
IMMENSE = [
    '{{ "%020000000000d" % 1 }}',
    '{{ "%.20000000000d" % 1 }}',
    '{{ "%*d" % (20000000000, 1) }}',
    '{{ "%(a)s%(a)s" % {"a": "b"|center(9000000)} }}',
    '{{ "a"|center(20000000000) }}',
    '{% autoescape "a"|center(20000000000) %}{% endautoescape %}',
    '{% if "a"|center(20000000000) %}{% endif %}',
    '{{ ["a"]|map("center", 20000000000)|list }}',
    '{{ "%020000000000d"|format(1) }}',
    '{{ "%s%s"|format("a"|center(9000000), "a"|center(9000000)) }}',
    '{{ "a"|indent(20000000000, true) }}',
    '{{ "a\n"|indent("a"|center(9000000), true) }}',
    '{{ "a"|replace("a", "b"|center(9000)|replace(" ", "c"|center(9000))) }}',
    '{{ range(9000)|join("a"|center(9000)) }}',
    '{{ range(9000)|map("string")|join("a"|center(9000)) }}',
    "{{ [1]|batch(20000000000, 0)|list }}",
    "{{ [1]|slice(20000000000)|list }}",
    '{{ ("a"|center(9000000)).join({"b": 1, "c": 2, "d": 3}) }}',
    '{{ {"a": "b"|center(9000000), "c": "d"|center(9000000)}.values()|join }}',
    '{% set ns = namespace(a="b"|center(9000000), c="d"|center(9000000)) %}{{ ns|string|length }}',
    "{{ range(9000)|map('replace', '', 'a'|center(9))|join(attribute='x', d='a'|center(9000)) }}",
    "{{ ('a'|center(9000))|replace(new='b'|center(9000), old=' ') }}",
    "{{ (range(9000)|map('default')|list)|map('string')|map('list')|sum(attribute='x', start=[]) }}",
    (
        "{% set ns = namespace(x=[]) %}{% set row = range(99999)|list %}"
        "{% for i in range(999) %}{% set ns.x = ns.x + [row] %}{% endfor %}{{ ns.x|sum(start=[])|length }}"
    ),
    "{{ [[1]]|tojson(indent=20000000000) }}",
    '{{ 1.5|round(20000000000, "ceil") }}',
    '{{ ("a b "|center(9000))|wordwrap(1, wrapstring="a"|center(9000)) }}',
    '{{ "a".center(20000000000) }}',
    '{{ "a".ljust(20000000000) }}',
    '{{ "a".rjust(20000000000) }}',
    '{{ "a".zfill(20000000000) }}',
    '{{ "a\t".expandtabs(20000000000) }}',
    '{{ "a".encode().center(20000000000) }}',
    '{{ ("a"|attr("center"))(20000000000) }}',
    '{{ "aa".translate({97: "a"}) }}',
    "{{ (1).to_bytes(20000000000) }}",
    '{{ (" " * 1) }}',
    '{{ (" ".center(9000)).replace(" ", " ".center(9000)) }}',
    '{{ (" ".center(9000)).join(range(9000)|map("string")) }}',
    '{{ "{:>20000000000}".format(1) }}',
    '{{ "{:>{}}".format(1, 20000000000) }}',
    '{{ "{a:>20000000000}".format_map({"a": 1}) }}',
    '{% set ns = namespace(x="aaaa") %}{% for _ in range(35) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}',
    '{% set ns = namespace(x="aaaa") %}{% for _ in range(35) %}{% set ns.x = ns.x + ns.x %}{% endfor %}',
    "{% set ns = namespace(x=[1]) %}{% for _ in range(35) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for _ in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    (
        "{% set ns = namespace(x=[1]) %}{% for _ in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
        "{{ ns.x|string|length }}"
    ),
    (
        "{% set ns = namespace(x=[1]) %}{% for _ in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
        "{{ ns.x|tojson|length }}"
    ),
    "{% set ns = namespace(x=3) %}{% for _ in range(40) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    (
        '{% set ns = namespace(x="aaaa") %}{% for _ in range(35) %}{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}'
        "{% set ns.x = x %}{% endfor %}"
    ),
    (
        '{% macro two(x) %}{{ x }}{{ x }}{% endmacro %}{% set ns = namespace(x="aaaa") %}'
        "{% for _ in range(35) %}{% set ns.x = two(ns.x) %}{% endfor %}"
    ),
    (
        '{% set ns = namespace(x=[]) %}{% set text = "a"|center(9000000) %}'
        "{% for i in range(999) %}{% set ns.x = ns.x + [text ~ i] %}{% endfor %}"
    ),
    (
        '{% set ns = namespace(x=[]) %}{% set text = "a"|center(9000000) %}'
        "{% for i in range(999) %}{% set ns.x = ns.x + [text[1:]] %}{% endfor %}"
    ),
    "{% set ns = namespace(x=[]) %}{% for i in range(999) %}{% set ns.x = ns.x + [range(99999)|list] %}{% endfor %}",
    '{{ strftime_now("%c"|center(9000000)) }}',
]


@pytest.fixture
def little_memory():
    """What takes more than 3 GB fails at once, and not the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 3 * 2**30, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("source", IMMENSE)
def test_a_template_makes_no_immense_texts(tokenizer, source):
    # A list in lists is measured until the time is over, or its text is too long.
    template = ChatTemplate(source, tokenizer, max_seconds=0.5 if "[ns.x, ns.x]" in source else 20)
    with pytest.raises(RequestError, match=r"refuses them: .*(chat template|characters)|took longer"):
        template.render(USER)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ '%05.1f|%-4s|%%' % (1.25, 'a') }}", "001.2|a   |%"),
        ("{{ '%s of %s'|format(1, 2) }}{{ '%(a)s'|format(a=3) }}", "1 of 23"),
        ("{{ '{:>4}{a!r}'.format(1, a='b') }}", "   1'b'"),
        ("{{ ('<b>'|safe).format(1) }}{{ ('<{}>'|safe).format('&') }}", "<b><&amp;>"),
        ("{{ 'a\nb'|indent }}{{ 'a\nb'|indent(2, true) }}{{ 'a\nb'|indent('> ') }}", "a\n    b  a\n  ba\n> b"),
        ("{{ [1, 2]|join(', ') }}{{ messages|map(attribute='role')|join }}{{ '-'.join(['a', 'b']) }}", "1, 2usera-b"),
        ("{{ [[1], [2]]|sum(start=[]) }}{{ [1, 2]|sum }}{{ [{'n': 2}]|sum(attribute='n') }}", "[1, 2]32"),
        ("{{ 'aXbX'|replace('X', '!', 1) }}{{ 'aX'.replace('X', 'YY') }}", "a!bXaYY"),
        ("{{ [1, 2, 3]|batch(2, 0)|list }}{{ 'a'.ljust(3) }}{{ '7'.zfill(2) }}", "[[1, 2], [3, 0]]a  07"),
        ("{{ [1, 2] + [3] }}{{ 2 * 3 }}{{ 7 % 4 }}{{ 'a' + 'b' ~ 1 ~ none }}{{ 'abc'[1:] }}", "[1, 2, 3]63ab1Nonebc"),
        ("{{ missing is defined }}{{ missing }}{{ missing|default('d') }}{{ true|tojson(indent=2) }}", "Falsedtrue"),
        ("{% autoescape true %}{{ '<' ~ ('<'|safe) }}{% endautoescape %}", "&lt;<"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{% set y %}{{ m(1) }}{% endset %}{{ y|upper ~ m(2) }}", "<1><2>"),
        ("{{ [3, 1]|sort|first }}{{ {'b': 1, 'a': 2}|dictsort }}{{ 1.26|round(1) }}", "1[('a', 2), ('b', 1)]1.3"),
        ("{{ '20260101: %s' % 'on' }}", "20260101: on"),
    ],
)
def test_what_templates_do_with_texts_is_as_before(tokenizer, source, text):
    assert ChatTemplate(source, tokenizer).render(USER) == text


def test_texts_that_grow_with_a_conversation_are_no_immense_ones(tokenizer):
    source = (
        "{% set ns = namespace(text='', all=[]) %}{% for m in messages %}{% set ns.text = ns.text ~ m.content %}"
        "{% set ns.all = ns.all + [m.content|trim|upper] %}{% endfor %}{{ ns.text }}"
    )
    talk = [{"role": "user", "content": f"{number:>800}"} for number in range(1000)]
    assert ChatTemplate(source, tokenizer).render(talk) == "".join(str(each["content"]) for each in talk)
