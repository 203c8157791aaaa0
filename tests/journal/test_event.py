"""One line of the journal: whatever is recorded comes back, and nothing that is read breaks the reader."""

from __future__ import annotations

import json
import math
import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.journal.event import LONGEST_TEXT, Event, decode, encode

WHEN = {"t": 1000.5, "mono": 20.25, "node": "gpu-12"}
RESERVED = {"t", "mono", "node", "kind"}

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
fields = st.dictionaries(st.text().filter(lambda name: name not in RESERVED), plain, max_size=6)


def strictly(line: bytes) -> Any:
    """What a strict reader of JSON makes of a line."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(line, parse_constant=refuse)


@given(st.text(min_size=1), fields)
def test_what_is_recorded_comes_back(kind: str, given_fields: dict[str, Any]) -> None:
    line = encode(kind, given_fields, **WHEN)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert strictly(line)["kind"] == kind
    assert decode(line) == Event(kind, 1000.5, 20.25, "gpu-12", given_fields, "gpu-12")


@given(st.binary())
def test_any_bytes_are_an_event_or_nothing(line: bytes) -> None:
    assert decode(line) is None or isinstance(decode(line), Event)


@given(fields, st.data())
def test_a_torn_line_is_nothing(given_fields: dict[str, Any], data: st.DataObject) -> None:
    line = encode("cycle_start", given_fields, **WHEN)
    kept = data.draw(st.integers(0, len(line) - 2))
    assert decode(line[:kept]) is None


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        "3",
        '{"kind": "a"}',
        '{"t": "now", "mono": 1, "node": "n", "kind": "a"}',
        '{"t": true, "mono": 1, "node": "n", "kind": "a"}',
        '{"t": NaN, "mono": 1, "node": "n", "kind": "a"}',
        '{"t": 1, "mono": 1, "node": "n", "kind": null}',
        "[" * 100_000,
    ],
)
def test_what_is_no_event_is_nothing(line: str) -> None:
    assert decode(line) is None


def test_a_newer_version_s_line_is_kept_as_it_is() -> None:
    line = '{"t": 1, "mono": 2, "node": "n", "kind": "from_the_future", "v": 7, "more": {"a": [1]}}'
    assert decode(line, source="m") == Event(
        "from_the_future", 1.0, 2.0, "n", {"v": 7, "more": {"a": [1]}}, "m"
    )


def test_an_event_about_another_node_and_time() -> None:
    event = decode(encode("node_lost", {"node": "gpu-9", "t": 7.0, "waited": 15.0}, **WHEN), source="gpu-12")
    assert event is not None
    assert (event.node, event.t, event.source) == ("gpu-9", 7.0, "gpu-12")


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_what_json_cannot_say_is_written_in_words() -> None:
    itself: list[Any] = []
    itself.append(itself)
    given_fields = {"nan": math.nan, "inf": math.inf, "huge": 2**70, "signal": signal.SIGTERM, "set": {1}}
    given_fields |= {"bytes": b"x", "rude": Rude(), "itself": itself, "surrogate": "\udc80", "key": {3: 1}}
    event = decode(encode("odd", given_fields, **WHEN))
    assert event is not None
    expected = {"nan": "nan", "inf": "inf", "huge": hex(2**70), "signal": 15, "set": [1], "bytes": "b'x'"}
    assert {name: event.get(name) for name in expected} == expected
    assert "RuntimeError" in event.get("rude")
    assert (event.get("surrogate"), event.get("key")) == ("\udc80", {"3": 1})


def test_a_long_text_keeps_its_two_ends() -> None:
    event = decode(encode("rank_exit", {"traceback": "first" + "x" * 100_000 + "last"}, **WHEN))
    assert event is not None
    text = event.get("traceback")
    assert len(text) < LONGEST_TEXT + 100
    assert text.startswith("first")
    assert text.endswith("last")
    assert "characters left out" in text
