"""What is known of attempts: how the journal tells them apart, why each ended, and the records of the ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.autoresume import chain, command
from holdfast.autoresume.ledger import (
    Attempt,
    Ledger,
    Record,
    attempt_begins,
    attempt_ends,
    chain_begins,
    chain_ends,
)
from holdfast.autoresume.outcome import (
    LONGEST,
    Account,
    Cause,
    Ending,
    Evidence,
    Kind,
    Scheduler,
    account_of,
    ending_of,
)
from holdfast.autoresume.policy import State
from holdfast.callbacks.completion import FLAG_VARIABLE
from tests.journal.story import START, Story


def begun() -> Story:
    """A run, and its first cycle a second later."""
    return Story().tell(0, "run_start").cycle(1, 0)


def test_the_first_to_fail_and_who_took_part() -> None:
    story = begun().cycle(1, 0, node="b").tell(1.5, "rank_start", cycle=0, rank=0)
    story.exit(5.0, 0, rank=1, signal="SIGKILL").exit(5.2, 0, rank=0, code=1)
    story.tell(6, "run_end", exit_code=137).tell(6, "run_end", exit_code=137, node="b")
    found = account_of(story.events)
    assert found.cause == Cause("killed by SIGKILL", "a", 1, "crash")
    assert found.nodes == ("a", "b")
    assert found.started


def test_a_fault_before_a_restart_ended_no_attempt() -> None:
    story = begun().exit(5.0, 0, rank=1, signal="SIGKILL")
    story.restart(5.5, to=1).cycle(7, 1)
    assert account_of(story.events).cause is None  # and then the launcher was killed, say


def test_another_attempt_in_the_same_run_directory_does_not_count() -> None:
    story = begun().exit(5.0, 0, rank=1, signal="SIGKILL")
    story.tell(6, "run_end", exit_code=137).tell(20, "run_start").cycle(21, 0)
    story.tell(25, "preemption", signal="SIGTERM").tell(26, "run_end", exit_code=75)
    found = account_of(story.events, since=START + 10)
    assert found.cause is None
    assert found.preempted_by == "SIGTERM"
    assert account_of(story.events, since=START + 100) == Account()


def test_which_nodes_were_suspected() -> None:
    story = begun().tell(8, "node_suspected", cycle=0, suspect="e")
    assert account_of(story.tell(9, "node_suspected", cycle=0, suspect="b").events).suspected == ("b", "e")


@pytest.mark.parametrize(("before", "only_same"), [(0, True), (1, False)])
def test_the_same_failure_at_the_end_of_an_attempt(before: int, only_same: bool) -> None:
    story = begun()
    same = {"failure": "ValueError: bad batch after step 23", "same_failure_limit": 3}
    for number in range(before):
        story.tell(5 + number, "incident", cycle=number).cycle(6 + number, number + 1)
    for number in range(2):
        story.tell(8 + number, "incident", cycle=before + number, same_failures=number + 1, **same)
        story.cycle(8.5 + number, before + number + 1)
    found = account_of(story.events)
    assert (found.failure, found.same_failures, found.same_failure_limit) == (same["failure"], 2, 3)
    assert found.only_same is only_same


def test_with_which_step_it_resumed() -> None:
    story = begun()
    # Ranks tell their first step when the monitor looks; the lowest is where the training began.
    story.tell(2, "first_step", cycle=0, rank=0, step=3).tell(2, "first_step", cycle=0, rank=1, step=1)
    story.restart(10, to=1).cycle(11, 1).tell(12, "first_step", cycle=1, rank=0, step=51)
    assert account_of(story.events).resumed_step == 51


def test_counted_steps_are_no_progress() -> None:
    """They begin at 1 in each process: a training that resumes further each time would seem to get nowhere."""
    story = begun()
    story.tell(2, "first_step", cycle=0, rank=0, step=1, counted=True)
    assert account_of(story.events).resumed_step is None


def test_a_request_for_the_end_and_a_long_story_are_a_line() -> None:
    why = "loss\nis NaN" + "!" * 500
    story = begun().tell(3, "request", cycle=0, rank=0, action="shutdown_workload", description=why)
    found = account_of(story.events)
    assert found.request.startswith("a rank asked to end the whole job: loss is NaN!")
    assert len(found.request) == LONGEST


# -- why an attempt ended


CRASH = Account(Cause("killed by SIGSEGV", "gpu-3", 1, "crash"), started=True)
TOLD = Account(preempted_by="SIGTERM", started=True)
NAN = Account(request="loss is NaN")
UNEXPLAINED = "exit code 93: a rank requested the end of the whole job, or training again cannot help"
REFUSED = "ft_launcher refused its command line (exit code 2) and started nothing"
FLAG = "the finished flag is there"
LIMIT = "the scheduler's time limit"
NO_NODE = "the scheduler lost a node"
NOT_FOUND = "exit code 127 (a shell's word for: the command was not found)"


@pytest.mark.parametrize(
    ("known", "kind", "why"),
    [
        (Evidence(0, True), Kind.FINISHED, FLAG),
        (Evidence(1, True, account=CRASH), Kind.FINISHED, f"{FLAG}, though the exit code is 1"),
        (Evidence(93, False), Kind.SHUT_DOWN, UNEXPLAINED),
        (Evidence(93, True, account=NAN), Kind.SHUT_DOWN, "loss is NaN"),
        (Evidence(None, True, account=NAN), Kind.SHUT_DOWN, "loss is NaN"),
        (Evidence(1, True, account=NAN), Kind.SHUT_DOWN, "loss is NaN"),
        (Evidence(0, True, account=NAN), Kind.FINISHED, FLAG),
        (Evidence(0, False), Kind.ENDED, "exit code 0 without the finished flag"),
        (Evidence(0, False, account=TOLD), Kind.PREEMPTED, "ended cleanly after SIGTERM"),
        (Evidence(75, False), Kind.PREEMPTED, "exit code 75"),
        (Evidence(75, False, account=TOLD), Kind.PREEMPTED, "exit code 75 after SIGTERM"),
        (Evidence(42, False, preempted_code=42), Kind.PREEMPTED, "exit code 42"),
        (Evidence(75, False, preempted_code=42), Kind.FAILED, "exit code 75"),
        (Evidence(-15, False), Kind.PREEMPTED, "ended by SIGTERM (exit code 143)"),
        (Evidence(143, False), Kind.PREEMPTED, "ended by SIGTERM (exit code 143)"),
        (Evidence(143, False, account=CRASH), Kind.FAILED, "killed by SIGSEGV"),
        (Evidence(-9, False), Kind.FAILED, "ended by SIGKILL (exit code 137)"),
        (Evidence(1, False, account=TOLD), Kind.FAILED, "exit code 1 after SIGTERM"),
        (Evidence(127, False), Kind.FAILED, NOT_FOUND),
        (Evidence(139, False, account=CRASH), Kind.FAILED, "killed by SIGSEGV"),
        (Evidence(1, False, account=Account(Cause("gone", "b", None, "node lost"))), Kind.NODE_LOST, "gone"),
        (Evidence(130, False), Kind.CANCELLED, "the command was ended by Ctrl-C (SIGINT)"),
        (Evidence(75, False, cancelled_by="SIGTERM"), Kind.CANCELLED, "ended by SIGTERM"),
        (Evidence(0, True, cancelled_by="SIGTERM"), Kind.FINISHED, FLAG),
        (Evidence(2, False), Kind.REFUSED, REFUSED),
        (Evidence(2, False, is_launcher=False), Kind.FAILED, "exit code 2"),
        (Evidence(2, False, account=Account(started=True)), Kind.FAILED, "exit code 2"),
        (Evidence(2, False, account=Account(unread=True)), Kind.FAILED, "exit code 2"),
        (Evidence(None, False), Kind.LOST, "its end was not observed"),
        (Evidence(0, False, Scheduler.TIME_LIMIT), Kind.TIME_LIMIT, LIMIT),
        (Evidence(1, False, Scheduler.TIME_LIMIT, account=CRASH), Kind.TIME_LIMIT, LIMIT),
        (Evidence(None, False, Scheduler.NODE_LOST, node="n3"), Kind.NODE_LOST, f"{NO_NODE}: n3"),
        (Evidence(-15, False, Scheduler.CANCELLED, "CANCELLED by 1000"), Kind.CANCELLED, "CANCELLED by 1000"),
        (Evidence(0, False, Scheduler.PREEMPTED), Kind.PREEMPTED, "preempted by the scheduler"),
    ],
)
def test_why(known: Evidence, kind: Kind, why: str) -> None:
    found = ending_of(known)
    assert (found.kind, found.why) == (kind, why)
    if kind is Kind.FAILED and known.account is CRASH:
        assert (found.node, found.rank) == ("gpu-3", 1)
    if known.node:
        assert found.node == known.node


def test_an_exit_code_alone_is_no_witness_of_a_preemption() -> None:
    assert not ending_of(Evidence(75, False)).witnessed
    assert not ending_of(Evidence(-15, False)).witnessed
    assert ending_of(Evidence(75, False, account=TOLD)).witnessed
    assert ending_of(Evidence(75, False, Scheduler.PREEMPTED)).witnessed


@given(st.one_of(st.none(), st.integers(-64, 255)), st.booleans(), st.sampled_from(Scheduler), st.booleans())
def test_only_the_flag_is_a_success(
    code: int | None, flag: bool, scheduler: Scheduler, launcher: bool
) -> None:
    found = ending_of(Evidence(code, flag, scheduler, is_launcher=launcher))
    assert (found.kind is Kind.FINISHED) == (flag and code != 93)
    assert found.why


def test_every_ending_state_and_variable_is_on_the_page() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "auto-resume.md").read_text()
    for kind in Kind:
        assert f"\n| {kind} |" in text
    for state in State:
        assert str(state) in text
    for variable in (FLAG_VARIABLE, command.NUMBER, command.MARK, chain.RUN_DIR, chain.PREEMPTED):
        assert f"\n| `{variable}` |" in text


# -- the ledger from its records: what is written is read, and what makes no sense does no harm


def begins(t: float = 1.0, *, carries_on: bool = False, pid: int = 17) -> Record:
    who = {"host": "h", "pid": pid, "started": 5}
    return chain_begins(t, command=["ft_launcher", "train.py"], flag="/f", carries_on=carries_on, **who)


def started(t: float, number: int, **about: Any) -> Record:
    return attempt_begins(t, Attempt(number, t, **about))


FAILED = Ending(Kind.FAILED, "exit code 1", node="gpu-7", rank=3)


def ended(t: float, number: int, ending: Ending = FAILED) -> Record:
    account = Account(resumed_step=4, nodes=("a", "b"))
    return attempt_ends(t, number, ending, exit_code=1, account=account)


def read(*records: Record) -> Ledger:
    """Over the wire and back."""
    return Ledger.of(json.loads(json.dumps(record)) for record in records)


def test_what_is_written_is_read() -> None:
    about: dict[str, Any] = {"host": "h", "pid": 9, "started": 8, "mark": "m", "job": "4711.0"}
    ledger = read(begins(), started(2.0, 1, **about), ended(5.5, 1))
    (chain,) = ledger.chains
    assert (chain.number, chain.began, chain.command) == (1, 1.0, ("ft_launcher", "train.py"))
    assert (chain.flag, chain.host, chain.pid, chain.started, chain.ended) == ("/f", "h", 17, 5, False)
    (attempt,) = chain.attempts
    assert attempt == Attempt(
        1, 2.0, **about, ended=5.5, kind=Kind.FAILED, exit_code=1, why="exit code 1", node="gpu-7", rank=3,
        resumed_step=4, nodes=("a", "b"),
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
    over = [begins(), started(2, 1), ended(3, 1), chain_ends(3, "gave up", "so it is")]
    ledger = read(*over, begins(9), started(9, 2))
    first, second = ledger.chains
    assert (first.state, first.why, first.ended) == ("gave up", "so it is", True)
    assert [attempt.number for attempt in second.attempts] == [2]
    assert ledger.attempts == first.attempts + second.attempts
    assert ledger.chain == second
    # Carrying on what is over is a chain of its own.
    assert len(read(begins(), chain_ends(2, "finished", ""), begins(3, carries_on=True)).chains) == 2


def test_what_is_written_twice_counts_once() -> None:
    """An attempt is written again once it has a pid."""
    ledger = read(begins(), started(2.0, 1, mark="m"), started(2.0, 1, mark="m", pid=9))
    assert [attempt.pid for attempt in ledger.attempts] == [9]
    told = [begins(), started(2.0, 1), ended(3.0, 1), chain_ends(4, "gave up", "so")]
    assert read(*[record for record in told for _ in range(2)]) == read(*told)
    assert read(*told, *told) == read(*told)
    late = read(*told[:3], told[1])  # a write that seemed to hang, done after those that followed it
    assert late == read(*told[:3]) and late.open_attempt is None


def test_of_a_newer_version_or_without_a_chain() -> None:
    newer = {**ended(3, 1), "ending": "abducted", "colour": "green"}
    ledger = read(begins(), {"kind": "weather", "t": 2}, started(2, 1), newer)
    assert ledger.attempts[0].kind is Kind.LOST
    assert ledger.attempts[0].why == "exit code 1"
    ledger = read(started(2, 1), ended(3, 1))
    assert [attempt.number for attempt in ledger.chains[0].attempts] == [1]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
FIELDS = [
    "t", "attempt", "ending", "exit_code", "state", "carries_on", "command", "pid", "why", "nodes", "rank",
]  # fmt: skip
RECORDS = st.lists(
    st.builds(
        lambda kind, fields: {**fields, "kind": kind},
        st.sampled_from(["chain", "attempt", "attempt_end", "chain_end", "other", 7]),
        st.dictionaries(st.sampled_from(FIELDS), JSON | st.integers(1, 3)),
    ),
    max_size=12,
)


@given(RECORDS)
def test_no_record_is_an_error(records: list[Record]) -> None:
    ledger = Ledger.of(records)
    numbers = [attempt.number for chain in ledger.chains for attempt in chain.attempts]
    assert ledger.next_number > max(numbers, default=0)
    assert ledger.open_attempt is None or ledger.open_attempt.kind is None
