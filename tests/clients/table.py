"""Writes docs/evidence/clients.md, client × version × feature, for `make generate`."""

from __future__ import annotations

from tests.clients.clients import CLIENTS, Client
from tests.clients.environments import ROOT
from tests.clients.families.checks import FEATURES
from tests.clients.tools import TOOLS

PAGE = ROOT / "docs/evidence/clients.md"
_HEAD = """\
# Clients

Client libraries, unchanged. Each ✓ is a test with a server and one with a gateway in front of two replicas.
`make test-clients` runs them, in an environment for each client. `make generate` writes this page.

"""
_MEANING = """
- **chat**: what the client calls a chat, by each API that it has for it.
- **stream**: the parts are the whole answer, and there are several of them.
- **async**: the client's asynchronous calls, several at a time.
- **tools**: a required call has arguments of the tool's types, and its result goes back.
- **structured output**: an answer of a type, in each way that the client has for it.
- **embeddings**: a vector for each text.
- **errors**: a prompt that is too long, an unknown model, a wrong key and a limit become errors of the client.
- **retries**: the servers answer 503 with `Retry-After`, and the client's answer comes once they are awake.
- **cancel**: what a client gives up ends on the servers within seconds.
"""
_TOOLS = """
## Load tools

Tools that send loads or evaluate, by their own command lines, with the same two places. Their own reports have to say
that all requests were complete, with as many tokens as the servers generated (aiperf counts those of responses itself,
to 10 %). lm-eval has to find the scores that the servers give, schemathesis no fault.
"""
_NAMES = {"asynchronous": "async", "structured_output": "structured output"}


def page() -> str:
    """The page."""
    head = ["client", "version", *(_NAMES.get(feature, feature) for feature in FEATURES)]
    notes: dict[str, int] = {}
    rows = [row(client, notes) for client in CLIENTS]
    table = [f"| {' | '.join(head)} |", f"|{'---|' * 2}{':-:|' * len(FEATURES)}", *rows]
    numbered = [f"{number}. {note}" for note, number in notes.items()]
    return _HEAD + "\n".join([*table, "", *numbered]) + "\n" + _MEANING + _TOOLS + "\n".join(tool_rows()) + "\n"


def tool_rows() -> list[str]:
    """The table of load tools."""
    rows = [f"| {tool.name} | {tool.version} | {', '.join(tool.tried)} |" for tool in TOOLS]
    return ["", "| tool | version | tried with |", "|---|---|---|", *rows]


def row(client: Client, notes: dict[str, int]) -> str:
    """The row of a client. Reasons for missing features get a number in `notes`."""
    cells = [
        f"({notes.setdefault(f'{client.name}: {reason}.', len(notes) + 1)})" if reason else "✓"
        for reason in client.features().values()
    ]
    return f"| {client.name} | {client.version()} | {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page())
