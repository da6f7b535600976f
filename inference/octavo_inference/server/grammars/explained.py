"""Says in plain words why llguidance refuses a grammar: what was found, the limit, and what to do instead.

The field is not part of it: `checks` writes it before.
"""

from __future__ import annotations

import re

MAX_LENGTH = 400

NO_TEXT = "the grammar accepts no text at all; give each recursion an end, and each pattern a text that it matches"

_PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")
# The excerpt of the grammar, and what the parser has read.
_REST = re.compile(r'\n +\d+ \| |\n?<non-verbose|<state>| \(at "')
_SCHEMA = re.compile(r"^failed to compile JSON schema: (Unsatisfiable schema: )?")
_PATTERN = re.compile(r"regex parse error:\n(?P<lines>(?: .*\n)+)error: (?P<problem>.*)", re.DOTALL)
_SHOWN = 64

# The first that is found, with its groups.
_MEANINGS = (
    (
        r"Current row has (\d+) items; max is (\d+)",
        (
            "the answer can go on in {0} ways at one place; the limit is {1}. Give fewer alternatives or optional "
            "properties at one level"
        ),
    ),
    (
        r"Too many items \(limit (\d+)",
        (
            "finding the next token takes more than {0} steps. Let each recursion end, and give fewer alternatives or "
            "optional parts"
        ),
    ),
    (
        r"^schema too large",
        "the schema has too many parts once it is compiled. Give fewer alternatives (anyOf, oneOf) or properties",
    ),
    (
        r"fuel exhausted.*?\((\d+)\)",
        (
            "comparing its patterns and numbers takes more than {0} steps. Give shorter patterns, or smaller numbers "
            "as multipleOf"
        ),
    ),
    (
        r"initial lexer configuration \(grammar\) too big \(limit for this grammar: (\d+)",
        "its texts and patterns take more than {0} steps to compile. Give fewer or shorter ones, with smaller counts",
    ),
    (r"^lexer error$", "this is not Lark"),
    (
        r"lex(?:er)? (?:fuel|error)|lexer states|too many (?:states|expressions)",
        "its patterns are too complex. Give shorter ones, with * or + instead of counts",
    ),
    (r"^invalid regex .*\nerror: ([^\n]*)$", "a regular expression is not supported: {0}"),
    (
        r"lookarounds not supported yet; Word.* in regex /(.*)/",
        (
            "the regular expression {0!r} has a word boundary (\\b, \\B), which is not supported. Write out what may "
            "stand there"
        ),
    ),
    (
        r"lookarounds not supported yet; .* in regex /(.*)/",
        "the regular expression {0!r} has ^ or $ inside. They are supported at its two ends only",
    ),
    (
        r"Value for 'multipleOf' has too many digits: (\d+)",
        "multipleOf has the digits {0}; the limit is 4294967295, not counting its point. Round it",
    ),
    (
        r"^min/maxProperties only supported",
        (
            "minProperties and maxProperties are supported with properties that are all required, or without any. "
            "List all in required, or leave the bound out"
        ),
    ),
    (
        r"patternProperty regexes /(.*)/ and /(.*)/ are not disjoint",
        "the patterns {0!r} and {1!r} of patternProperties match the same names. Let them exclude each other",
    ),
    (
        r"^oneOf constraints are not supported",
        "the alternatives of oneOf may overlap. Give each a required property with a const of its own, or use anyOf",
    ),
    (
        r"^Schema intersection stack level exceeded",
        "the schema combines too many others by allOf, anyOf and $ref. Give the combined schema itself",
    ),
    (
        r"Failed to generate regex for (?:integer|float) range: min=(?:Some\((\S*)\)|None), max=(?:Some\((\S*)\)|None)",
        "the bounds of a number, from {0} to {1}, are not supported. Give ones from -10^17 to 10^17",
    ),
    (
        r"^Resource '(.*)' is not present",
        "$schema {0!r} is not known. Leave it out, or give https://json-schema.org/draft/2020-12/schema",
    ),
    (r"^Invalid URI reference '(.*)': ", "{0!r} in $id, $schema or $ref is not a URI"),
    (r"^Invalid type: (.*)", "type {0!r} is not supported. Give one of JSON Schema's types, such as string"),
    (r"^Unimplemented keys: (.*)", "keywords of the schema that are not supported: {0}. Leave them out"),
    (r"^unknown name: \"(.*)\"", "no rule or terminal has the name {0!r}. Define it"),
    (r"^duplicate (?:rule|token): \"(.*)\"", "two definitions have the name {0!r}. Rename one"),
    (r"^no start rule found", "the grammar has no rule 'start: …', which is the answer. Add one"),
    (
        r"^circular reference in token \"(.*)\"",
        "the terminal {0!r} refers to itself. Make it a rule, with a name in lower case",
    ),
    (r"^Unknown common regex: (\S+); following are available: (.*)", "%import {0} is not supported; supported: {1}"),
    (
        r"^unknown special token: \"(.*)\"; following special tokens are available: (.*)",
        "the model has no special token {0!r}; it has: {1}",
    ),
    (r"^template usage not supported", "templates, NAME{{…}}, are not supported. Write the rule out"),
    (r"^Token range end too large: (\d+)", "the model's vocabulary has no token {0}"),
    (r"^unknown grammar @?(.*)", "other grammars, such as @{0}, cannot be named. Write the rules themselves"),
    (r"^Expected token '(.*)', found '(.*)'", "expected {0!r}, found {1!r}"),
    (r"NoExtensionBias", NO_TEXT),
)
_REASONS = (
    (r"^incompatible types", "its parts (allOf, type, enum, const) ask for different types"),
    (r"^anyOf is empty|^oneOf is empty", "it has an empty list of types or alternatives"),
    (r"^Regex is empty", "no text has the pattern, format and length together"),
    (r"^required property '(.*)' is unsatisfiable", "the required property {0!r} allows no value"),
    (r"^required item is unsatisfiable", "minItems asks for more items than the schema allows"),
    (r"^integer interval (.*) contains no integer values", "there is no whole number in {0}"),
)


def explained(message: str) -> str:
    """The matcher's message without what its reader cannot know: the text around a schema, options, libraries."""
    message = _REST.split(message, maxsplit=1)[0].strip()
    found = _PLACE.match(message)
    place = f"line {found[1]}, column {found[2]}: " if found else ""
    message = _PLACE.sub("", message)
    schema = _SCHEMA.match(message)
    if schema:
        # Its place is that of the whole schema, in a text that its reader does not know.
        place = ""
        message = message[schema.end() :]
        if schema[1]:
            reason = _meaning(message, _REASONS) or message
            return f"no value satisfies the schema: {reason}"[:MAX_LENGTH]
    pattern = _PATTERN.search(message)
    if pattern:
        return f"the regular expression {_shown(_source(pattern['lines']))} is not supported: {pattern['problem']}"
    if message.startswith("invalid regex"):
        # The text before a regular expression is not always its reader's.
        place = ""
    meaning = _meaning(message, _MEANINGS)
    return (place + (meaning or " ".join(message.split())))[:MAX_LENGTH]


def _meaning(message: str, meanings: tuple[tuple[str, str], ...]) -> str | None:
    for pattern, meaning in meanings:
        found = re.search(pattern, message, re.DOTALL)
        if found:
            return meaning.format(*("unbounded" if group is None else group for group in found.groups()))
    return None


def _source(lines: str) -> str:
    """The regular expression of an error, without the marks below it."""
    return "".join(line.strip() for line in lines.splitlines() if set(line) - set(" ^"))


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…")
