"""Converts EBNF as llama.cpp has it (GBNF: `root ::= "a" [0-9]+ rule`) to Lark."""

from __future__ import annotations

from octavo_inference.grammar.ebnf_nodes import names_in
from octavo_inference.grammar.ebnf_parser import EbnfParser
from octavo_inference.grammar.lark_writer import LarkWriter
from octavo_inference.grammar.refusal import refusal


def ebnf_to_lark(text: str, param: str) -> str:
    """A grammar in Lark from one in EBNF, whose rule `root` is the answer. Raises `RequestError`."""
    rules = EbnfParser(text, param).rules()
    if "root" not in rules:
        raise refusal(param, "the grammar has no rule 'root ::= …', which is the answer")
    for name, rule in rules.items():
        unknown = next((found for found in names_in(rule) if found not in rules), None)
        if unknown is not None:
            raise refusal(param, f"rule {name[:64]!r} refers to {unknown[:64]!r}, which is not a rule")
    return LarkWriter(rules, param).grammar()
