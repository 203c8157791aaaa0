"""The ledger from its records: what is written is read, and what makes no sense does no harm."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.autoresume.ledger import (
    Attempt,
    Ledger,
    Record,
    attempt_begins,
    attempt_ends,
    chain_begins,
    chain_ends,
)
from holdfast.autoresume.outcome import Account, Ending, Kind


def begins(t: float = 1.0, *, carries_on: bool = False, pid: int = 17) -> Record:
    return chain_begins(
        t, command=["ft_launcher", "train.py"], flag="/f", host="h", pid=pid, started=5, carries_on=carries_on
    )


def started(t: float, number: int, **about: Any) -> Record:
    return attempt_begins(t, Attempt(number, t, **about))


FAILED = Ending(Kind.FAILED, "exit code 1", node="gpu-7", rank=3)


def ended(t: float, number: int, ending: Ending = FAILED) -> Record:
    return attempt_ends(
        t, number, ending, exit_code=1, account=Account(resumed_step=4, last_step=9, nodes=("a", "b"))
    )


def read(*records: Record) -> Ledger:
    """Over the wire and back."""
    return Ledger.of(json.loads(json.dumps(record)) for record in records)


def test_what_is_written_is_read() -> None:
    ledger = read(
        begins(), started(2.0, 1, host="h", pid=9, started=8, mark="m", job="4711.0"), ended(5.5, 1)
    )
    (chain,) = ledger.chains
    assert (chain.number, chain.began, chain.command, chain.flag) == (
        1,
        1.0,
        ("ft_launcher", "train.py"),
        "/f",
    )
    assert (chain.host, chain.pid, chain.started, chain.ended) == ("h", 17, 5, False)
    (attempt,) = chain.attempts
    assert attempt == Attempt(
        1, 2.0, host="h", pid=9, started=8, mark="m", job="4711.0", ended=5.5, kind=Kind.FAILED, exit_code=1,
        why="exit code 1", node="gpu-7", rank=3, resumed_step=4, last_step=9, nodes=("a", "b"),
    )  # fmt: skip
    assert attempt.seconds == 3.5
    assert ledger.next_number == 2
    assert ledger.open_attempt is None


def test_a_chain_whose_keeper_was_killed_is_carried_on() -> None:
    ledger = read(begins(), started(2.0, 1), begins(9.0, carries_on=True, pid=18), started(10.0, 2))
    (chain,) = ledger.chains
    assert (chain.pid, chain.began) == (18, 1.0)
    assert [attempt.number for attempt in chain.attempts] == [1, 2]
    assert ledger.open_attempt == chain.attempts[1]


def test_after_its_end_there_is_another_one() -> None:
    ledger = read(
        begins(), started(2, 1), ended(3, 1), chain_ends(3, "gave up", "so it is"), begins(9), started(9, 2)
    )
    first, second = ledger.chains
    assert (first.state, first.why, first.ended) == ("gave up", "so it is", True)
    assert [attempt.number for attempt in second.attempts] == [2]
    assert ledger.attempts == first.attempts + second.attempts
    assert ledger.chain == second
    # Carrying on what is over is a chain of its own.
    assert len(read(begins(), chain_ends(2, "finished", ""), begins(3, carries_on=True)).chains) == 2


def test_an_attempt_is_told_twice_once_it_has_a_pid() -> None:
    ledger = read(begins(), started(2.0, 1, mark="m"), started(2.0, 1, mark="m", pid=9))
    assert [attempt.pid for attempt in ledger.attempts] == [9]


def test_what_is_written_twice_counts_once() -> None:
    told = [begins(), started(2.0, 1), ended(3.0, 1), chain_ends(4, "gave up", "so")]
    assert read(*[record for record in told for _ in range(2)]) == read(*told)
    assert read(*told, *told) == read(*told)
    late = read(*told[:3], told[1])  # a write that seemed to hang, done after those that followed it
    assert late == read(*told[:3]) and late.open_attempt is None


def test_of_a_newer_version() -> None:
    newer = {**ended(3, 1), "ending": "abducted", "colour": "green"}
    ledger = read(begins(), {"kind": "weather", "t": 2}, started(2, 1), newer)
    assert ledger.attempts[0].kind is Kind.LOST
    assert ledger.attempts[0].why == "exit code 1"


def test_an_attempt_whose_chain_was_not_written() -> None:
    ledger = read(started(2, 1), ended(3, 1))
    assert [attempt.number for attempt in ledger.chains[0].attempts] == [1]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
FIELDS = [
    "t",
    "attempt",
    "ending",
    "exit_code",
    "state",
    "carries_on",
    "command",
    "pid",
    "why",
    "nodes",
    "rank",
]
RECORDS = st.lists(
    st.builds(
        lambda kind, fields: {**fields, "kind": kind},
        st.sampled_from(["chain", "attempt", "attempt_end", "chain_end", "other", 7]),
        st.dictionaries(st.sampled_from(FIELDS), JSON | st.integers(1, 3)),
    ),
    max_size=12,
)


@settings(max_examples=50)
@given(RECORDS)
def test_no_record_is_an_error(records: list[Record]) -> None:
    ledger = Ledger.of(records)
    numbers = [attempt.number for chain in ledger.chains for attempt in chain.attempts]
    assert ledger.next_number > max(numbers, default=0)
    assert ledger.open_attempt is None or ledger.open_attempt.kind is None
