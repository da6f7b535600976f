"""The trace loader: what people have, and what they get wrong."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_simulator.trace import Trace, TraceError, TraceRequest, cut, load, merge, parse

AZURE = b"""TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
"""


def test_azure() -> None:
    trace = parse(AZURE, "code")
    assert [(round(r.at, 4), r.prompt, r.output) for r in trace.requests] == [(0.0, 4808, 10), (0.052, 3180, 8)]
    assert trace.notes == ()
    assert trace.start == pytest.approx(1700158623.97996)


def test_plain_columns_in_any_order_and_more_of_them() -> None:
    trace = parse(b"\xef\xbb\xbfoutput,user agent,arrival,input\r\n5,x,2.5,30\r\n\r\n7,y,4,40\r\n", "plain")
    assert trace.requests == (TraceRequest(0.0, 30, 5), TraceRequest(1.5, 40, 7))
    assert trace.start is None


def test_sessions_and_prefixes() -> None:
    trace = parse(b"arrival,input,output,session\n0,10,1,a\n1,20,1,b\n2,30,1,a\n3,40,1,\n", "s")
    assert [(r.prefix, r.shared, r.turn) for r in trace.requests] == [
        (0, 10, True),
        (1, 20, True),
        (0, 30, True),
        (-1, 0, False),
    ]
    trace = parse(b"arrival,input,output,prefix,prefix_tokens\n0,10,1,a,8\n1,20,1,a,64\n", "p")
    assert [(r.prefix, r.shared, r.turn) for r in trace.requests] == [(0, 8, False), (0, 20, False)]


def test_unsorted_lines_are_sorted_and_said() -> None:
    trace = parse(b"time,input,output\n5,10,1\n3,20,2\n4,30,0\n", "t")
    assert trace.requests == (TraceRequest(0.0, 20, 2), TraceRequest(1.0, 30, 1), TraceRequest(2.0, 10, 1))
    assert trace.notes == (
        "1 lines were out of order: sorted by time",
        "1 requests without output tokens: counted as one token",
    )


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "line 1 has no column for the arrival; found an empty line, expected one named timestamp or arrival"),
        (b"arrival,input\n0,1\n", "line 1 has no column for the output length; found arrival,input, expected one"),
        (b"arrival,input,output\n", "no requests; expected a header and at least one line"),
        (b"arrival,input,output\n0,5,-1\n", "line 2: output is -1; expected 0 to 10000000 tokens"),
        (b"arrival,input,output\n0,5,1\n1,0,1\n", "line 3: input is 0; expected 1 to 10000000 tokens"),
        (b"arrival,input,output\n0,nan,1\n", "line 2: input is 'nan'; expected a whole number of tokens"),
        (b"arrival,input,output\n0,1e300,1\n", "line 2: input is 1e300; expected 1 to 10000000 tokens"),
        (b"arrival,input,output\n0,7.5,1\n", "line 2: input is '7.5'; expected a whole number of tokens"),
        (b"arrival,input,output\n0,7\n", "line 2 has 2 values; the header has 3"),
        (b"arrival,input,output\ninf,7,7\n", "line 2: arrival is 'inf'; expected a finite number of seconds"),
        (
            b"arrival,input,output\nyesterday,7,7\n",
            "line 2: arrival is 'yesterday'; expected seconds or a date such as",
        ),
        (b"arrival,input,output\n2023-13-01 00:00:00,7,7\n", "line 2: arrival is '2023-13-01 00:00:00'; expected"),
        (b"arrival,input,output\n2023-12-01,7,7\n5,7,7\n", "column arrival has both dates and plain numbers; use one"),
        (b"arrival,input,output\n0,7,7\n0,\xff,7\n", "line 3 is not UTF-8; save the file as UTF-8 text"),
        (b"arrival,input,output\n0,7,7\n99999999999,7,7\n", "column arrival spans 1157407 days; expected at most 31"),
        (b"arrival,input,output\n0,7\0,7\n", "line 2 has a NUL character; expected CSV text"),
        (b"arrival,input,output\n0,7,7\n1," + b"9" * 200_000 + b",1\n", "line 3: field larger than field limit"),
    ],
)
def test_one_line_says_what_is_wrong(data: bytes, message: str) -> None:
    with pytest.raises(TraceError) as raised:
        parse(data, "bad", "bad.csv")
    assert str(raised.value).startswith(f"bad.csv: {message}")
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there(tmp_path: object) -> None:
    with pytest.raises(TraceError, match="No such file or directory; give the path of a CSV file"):
        load(tmp_path / "none.csv")  # type: ignore[operator]


cells = st.one_of(
    st.text(max_size=12), st.integers(-5, 10**9).map(str), st.floats().map(str), st.datetimes().map(str), st.just("")
)
lines = st.lists(st.lists(cells, max_size=5).map(",".join), max_size=8).map("\n".join)


@given(st.one_of(st.binary(max_size=300), lines.map(lambda text: f"arrival,input,output\n{text}".encode())))
@settings(max_examples=scaled(100))
def test_anything_is_a_trace_or_one_line(data: bytes) -> None:
    try:
        trace = parse(data, "fuzz")
    except TraceError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017 (most examples are no traces)
        return
    assert trace.requests
    assert all(0 <= a.at <= b.at for a, b in zip(trace.requests, trace.requests[1:], strict=False))
    assert all(r.prompt >= 1 and r.output >= 1 and r.shared <= r.prompt for r in trace.requests)
    assert trace.seconds > trace.requests[-1].at


def test_cut_and_merge() -> None:
    one = Trace("one", (TraceRequest(0, 1, 1, 0, 1), TraceRequest(5, 2, 2), TraceRequest(9, 3, 3)), 10)
    assert cut(one, 5, 9).requests == (TraceRequest(0, 2, 2),)
    two = Trace("two", (TraceRequest(4, 7, 7, 0, 7),), 5)
    both = merge("both", (one, two))
    assert [(r.at, r.prefix) for r in both.requests] == [(0, 0), (4, 1), (5, -1), (9, -1)]
    assert both.seconds == 10
