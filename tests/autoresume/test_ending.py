"""Why an attempt ended, from what is known of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.autoresume import chain, command
from holdfast.autoresume.outcome import Account, Cause, Evidence, Kind, Scheduler, ending_of
from holdfast.autoresume.policy import State
from holdfast.callbacks.completion import FLAG_VARIABLE

CRASH = Account(Cause("killed by SIGSEGV", "gpu-3", 1, "crash"), started=True)
TOLD = Account(preempted_by="SIGTERM", started=True)


@pytest.mark.parametrize(
    ("known", "kind", "why"),
    [
        (Evidence(0, True), Kind.FINISHED, "the finished flag is there"),
        (
            Evidence(1, True, account=CRASH),
            Kind.FINISHED,
            "the finished flag is there, though the exit code is 1",
        ),
        (
            Evidence(93, False),
            Kind.SHUT_DOWN,
            "exit code 93: a rank requested the end of the whole job, or training again cannot help",
        ),
        (
            Evidence(93, True, account=Account(request="rank 0: loss is NaN")),
            Kind.SHUT_DOWN,
            "rank 0: loss is NaN",
        ),
        (
            Evidence(None, True, account=Account(request="loss is NaN")),
            Kind.SHUT_DOWN,
            "loss is NaN",
        ),
        (Evidence(1, True, account=Account(request="loss is NaN")), Kind.SHUT_DOWN, "loss is NaN"),
        (
            Evidence(0, True, account=Account(request="loss is NaN")),
            Kind.FINISHED,
            "the finished flag is there",
        ),
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
        (Evidence(139, False, account=CRASH), Kind.FAILED, "killed by SIGSEGV"),
        (Evidence(1, False, account=Account(Cause("gone", "b", None, "node lost"))), Kind.NODE_LOST, "gone"),
        (Evidence(130, False), Kind.CANCELLED, "the command was ended by Ctrl-C (SIGINT)"),
        (Evidence(75, False, cancelled_by="SIGTERM"), Kind.CANCELLED, "ended by SIGTERM"),
        (Evidence(0, True, cancelled_by="SIGTERM"), Kind.FINISHED, "the finished flag is there"),
        (
            Evidence(2, False),
            Kind.REFUSED,
            "ft_launcher refused its command line (exit code 2) and started nothing",
        ),
        (Evidence(2, False, is_launcher=False), Kind.FAILED, "exit code 2"),
        (Evidence(2, False, account=Account(started=True)), Kind.FAILED, "exit code 2"),
        (Evidence(2, False, account=Account(unread=True)), Kind.FAILED, "exit code 2"),
        (Evidence(None, False), Kind.LOST, "its end was not observed"),
        (Evidence(0, False, Scheduler.TIME_LIMIT), Kind.TIME_LIMIT, "the scheduler's time limit"),
        (
            Evidence(1, False, Scheduler.TIME_LIMIT, account=CRASH),
            Kind.TIME_LIMIT,
            "the scheduler's time limit",
        ),
        (
            Evidence(None, False, Scheduler.NODE_LOST, node="n3"),
            Kind.NODE_LOST,
            "the scheduler lost a node: n3",
        ),
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
def test_nothing_but_the_flag_is_a_success(
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
