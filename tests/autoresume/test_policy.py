"""One more attempt or not: what spends the budget, what gives it back, and that nothing repeats forever."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.autoresume.ledger import Attempt, Chain
from holdfast.autoresume.outcome import Kind
from holdfast.autoresume.policy import (
    LONG_ENOUGH,
    LONGEST_WAIT,
    Limits,
    State,
    decide,
    failures_in_a_row,
    idle_in_a_row,
    nodes_to_exclude,
)

KINDS = {
    "F": Kind.FAILED,
    "N": Kind.NODE_LOST,
    "P": Kind.PREEMPTED,
    "T": Kind.TIME_LIMIT,
    "E": Kind.ENDED,
    "L": Kind.LOST,
    "D": Kind.FINISHED,
    "S": Kind.SHUT_DOWN,
    "C": Kind.CANCELLED,
    "R": Kind.REFUSED,
}


# -- cases, also for the job script of NeMo-Run

# A letter is an attempt: F failed, N cut off with its node, P preempted, p preempted as only its exit code tells,
# T time limit, E ended with 0 and without the finished flag. With the default limits, 3 failures or idle ends in a row.


@dataclass(frozen=True)
class Case:
    """Attempts, and what follows from them."""

    letters: str
    failures: int
    """In a row, at the end."""
    idle: int = 0
    """Ends that got nowhere, in a row."""
    seconds: tuple[int, ...] = ()
    """How long each ran; 10 where none is given. Of an N it is not known."""
    steps: tuple[int | None, ...] = ()
    """Where each resumed; None where it is not known."""

    @property
    def goes_on(self) -> bool:
        """One more attempt follows."""
        return self.idle < 3 and not (self.failures >= 3 and self.letters[-1] in "FN")

    def __str__(self) -> str:
        return "-".join([self.letters, *map(str, self.seconds), *(f"at{step}" for step in self.steps)])


CASES = [
    Case("F", 1),
    Case("FF", 2),
    Case("FFF", 3),
    Case("FNF", 3),
    Case("NNN", 3),
    # a preemption costs nothing and gives nothing back, unless it outlived the failures
    Case("PPPPP", 0),
    Case("FPFF", 3),
    Case("FFPF", 3, seconds=(50, 60, 55, 50)),
    Case("FFPF", 1, seconds=(50, 60, 90, 50)),
    Case("FFTF", 1, seconds=(50, 60, 3600, 50)),
    Case("NPF", 2, seconds=(0, 200, 50)),
    Case("NPF", 1, seconds=(0, 350, 50)),
    # a clean end gives nothing back unless it was a long one
    Case("FEF", 2, seconds=(50, 90, 50)),
    Case("FEF", 1, seconds=(50, 350, 50)),
    # where steps are reported, only a later step ends a row
    Case("FTF", 2, seconds=(50, 3600, 50), steps=(1, 1, 1)),
    Case("FPF", 1, steps=(1, 1, 500)),
    Case("FFFF", 1, steps=(1, 500, 1000, 1500)),
    Case("FFF", 3, steps=(500, 1, 500)),
    Case("FFF", 3, steps=(1, None, None)),
    # ends that get nowhere are one row, whatever they look like
    Case("E", 0, 1),
    Case("EEE", 0, 3),
    Case("ppp", 0, 3),
    Case("EpE", 0, 3),
    Case("EPEE", 0, 2),
    Case("EFEE", 1, 2),
    Case("EEE", 0, 0, seconds=(350, 350, 350)),
    Case("ppp", 0, 0, seconds=(350, 350, 350)),
    Case("EEEE", 0, 1, steps=(1, 100, 200, 300)),
    Case("EEEE", 0, 3, seconds=(350, 350, 350, 350), steps=(1, 100, 100, 100)),
    Case("TTTT", 0, 0, seconds=(3600, 3600, 3600, 3600)),
    Case("TTT", 0, 3, seconds=(3600, 3600, 3600), steps=(1, 1, 1)),
    Case("TTTT", 0, 1, seconds=(3600, 3600, 3600, 3600), steps=(1, 2, 3, 4)),
]


def attempt(kind: str, number: int = 1, *, seconds: float = 10.0, **fields: Any) -> Attempt:
    """One that ended as the letter says, after so many seconds."""
    fields = {"why": "exit code 1", **fields}
    return Attempt(number, 0.0, ended=seconds, kind=KINDS[kind], **fields)


def chain(
    letters: str, *, seconds: float | Sequence[float] = 10.0, steps: Sequence[int | None] = ()
) -> Chain:
    """A letter for each attempt; `seconds` for all or each, `steps` where each resumed."""
    each = list(seconds) if isinstance(seconds, Sequence) else [seconds] * len(letters)
    resumed = [*steps, *[None] * (len(letters) - len(steps))]
    attempts = [
        attempt(letter, number, seconds=ran, resumed_step=step)
        for number, (letter, ran, step) in enumerate(zip(letters, each, resumed, strict=True), 1)
    ]
    return Chain(1, 0.0, tuple(attempts))


@pytest.mark.parametrize(
    ("letters", "max_jobs", "expected", "code"),
    [
        ("FFD", None, State.FINISHED, 0),
        ("S", None, State.SHUT_DOWN, 93),
        ("C", None, State.CANCELLED, 130),
        ("R", None, State.GAVE_UP, 1),
        ("FFF", None, State.GAVE_UP, 1),
        ("", None, State.GOES_ON, 0),
        ("LLLLLLLLLL", None, State.GOES_ON, 0),
        ("EEEL", None, State.GOES_ON, 0),  # how it ended is not known
        ("EEELE", None, State.GAVE_UP, 1),
        ("PP", 2, State.TOO_MANY_JOBS, 1),
        ("P", 2, State.GOES_ON, 0),
        ("PD", 2, State.FINISHED, 0),
        ("FFF", 3, State.GAVE_UP, 1),  # the better reason
    ],
)
def test_what_follows(letters: str, max_jobs: int | None, expected: State, code: int) -> None:
    decision = decide(chain(letters), Limits(max_jobs=max_jobs))
    assert (decision.state, decision.exit_code) == (expected, code)
    assert decision.goes_on == (expected is State.GOES_ON)


@pytest.mark.parametrize("limits", [Limits(max_failures=1), Limits(max_jobs=1), Limits(max_failures=2)])
def test_whoever_carries_on_makes_an_attempt_at_least(limits: Limits) -> None:
    assert decide(chain("FF"), limits, before=2).goes_on
    assert not decide(chain("FFF"), limits, before=2).goes_on  # what failed before counts from then on
    assert decide(chain("FFS"), limits, before=3).state is State.SHUT_DOWN
    assert decide(chain("PP"), Limits(max_jobs=2), before=1).goes_on


def test_preemptions_by_exit_code_are_no_missing_flag() -> None:
    told = [attempt("P", number, witnessed=False) for number in (1, 2, 3)]
    decision = decide(Chain(1, 0.0, tuple(told)), Limits())
    assert decision.state is State.GAVE_UP
    assert "Only exit codes report these preemptions" in decision.why and "FLAG" not in decision.why
    assert "FAULT_TOL_FINISHED_FLAG_FILE" in decide(chain("EEE"), Limits()).why


def test_a_program_that_is_done_and_makes_no_flag_is_found_out() -> None:
    # Days of work, then it loads its last checkpoint and ends, each time.
    found = chain("EEEEE", seconds=[90_000, 80_000, 20, 20, 20])
    assert [each.number for each in idle_in_a_row(found.attempts)] == [3, 4, 5]
    decision = decide(found, Limits())
    assert decision.state is State.GAVE_UP
    assert "FAULT_TOL_FINISHED_FLAG_FILE" in decision.why
    too_short = decide(chain("TTT", seconds=3600, steps=[1, 1, 1]), Limits())
    assert "time limit shorter than the way to the next checkpoint" in too_short.why


def test_giving_up_names_the_causes() -> None:
    attempts = (
        attempt("F", 1, why="RuntimeError: CUDA error", rank=3, node="b"),
        attempt("F", 2, why="exit code 7", rank=1, node="a"),
        attempt("F", 3, why="exit code 7", rank=1, node="a"),
    )
    assert decide(Chain(1, 0.0, attempts), Limits()).why == (
        "gave up after 3 failures in a row without progress, the last: attempt 3 failed after 10.0 s: "
        "rank 1 (node a): exit code 7; before that: rank 3 (node b): RuntimeError: CUDA error"
    )


def test_quick_ends_are_followed_more_and_more_slowly() -> None:
    limits = Limits(max_failures=100)
    assert [decide(chain("F" * many), limits).wait for many in (1, 2, 3, 4)] == [5, 10, 20, 40]
    assert decide(chain("F" * 50), limits).wait == LONGEST_WAIT
    assert decide(chain("FFF", seconds=[1, 1, 100]), limits).wait == 0
    assert decide(chain("PFP", seconds=[100, 1, 1]), limits).wait == 10
    assert decide(chain("FF"), Limits(first_wait=0)).wait == 0


ATTEMPTS = st.lists(
    st.tuples(st.sampled_from("FNPTEL"), st.floats(0, 10_000), st.one_of(st.none(), st.integers(0, 5))),
    max_size=12,
).map(
    lambda drawn: chain(
        "".join(kind for kind, _, _ in drawn),
        seconds=[seconds for _, seconds, _ in drawn],
        steps=[step for _, _, step in drawn],
    )
)


@given(ATTEMPTS, st.integers(1, 5), st.integers(2, 5), st.one_of(st.none(), st.integers(1, 8)))
def test_only_a_finished_chain_has_exit_code_0(
    found: Chain, max_failures: int, max_idle: int, max_jobs: int | None
) -> None:
    decision = decide(found, Limits(max_failures, max_jobs, max_idle))
    assert decision.goes_on or decision.exit_code != 0
    assert 0 <= decision.wait <= LONGEST_WAIT
    assert "\n" not in decision.why
    if decision.state is State.GAVE_UP:
        last = found.attempts[-1]
        assert last in failures_in_a_row(found.attempts) or last in idle_in_a_row(found.attempts)


@given(ATTEMPTS, st.sampled_from("PTEL"))
def test_an_attempt_that_did_not_fail_adds_no_failure(found: Chain, further: str) -> None:
    more = (*found.attempts, attempt(further, len(found.attempts) + 1))
    assert len(failures_in_a_row(more)) <= len(failures_in_a_row(found.attempts))


@given(st.lists(st.sampled_from("FNE"), min_size=1), st.integers(1, 5), st.integers(2, 5), st.booleans())
def test_what_gets_nowhere_does_not_go_on_for_ever(
    pattern: list[str], max_failures: int, max_idle: int, tells_steps: bool
) -> None:
    limits = Limits(max_failures, None, max_idle)
    made = ""
    for number in count():
        made += pattern[number % len(pattern)]
        found = chain(made, steps=[7] * len(made) if tells_steps else ())
        if not decide(found, limits).goes_on:
            break
        assert len(made) <= max_failures * max_idle


BAD_BATCH = "ValueError: bad batch after step 23"


def same(number: int, count: int, failure: str = BAD_BATCH, limit: int = 3) -> Attempt:
    return attempt("F", number, failure=failure, same_failures=count, same_failure_limit=limit)


@pytest.mark.parametrize(
    ("row", "gives_up"),
    [
        ([same(1, 2), same(2, 1)], True),
        ([same(1, 1), same(2, 1)], False),
        ([same(1, 2), replace(same(2, 2), only_same=False)], False),
        ([same(1, 2), same(2, 1, "KeyError: 'x' after step 5")], False),
        ([same(1, 2), attempt("P", 2), same(3, 1)], False),
        ([same(1, 2, limit=5), same(2, 2, limit=5)], False),
        ([same(1, 2, limit=0), same(2, 2, limit=0)], False),
        ([same(1, 2, ""), same(2, 2, "")], False),
    ],
)
def test_the_same_failure_in_several_attempts_ends_the_chain(row: list[Attempt], gives_up: bool) -> None:
    decision = decide(Chain(1, 0.0, tuple(row)), Limits(max_failures=9))
    assert (decision.state is State.GAVE_UP) is gives_up
    if gives_up:
        assert decision.why.startswith(f"gave up: the same failure 3 times in a row: {BAD_BATCH}")


def test_which_nodes_are_left_out() -> None:
    failed = [
        attempt("F", 1, node="a", why="Xid 79: GPU has fallen off the bus"),
        attempt("F", 2, node="b", why="exit code 1"),
        attempt("N", 3, node="a"),
        attempt("P", 4, node="b"),
    ]
    assert nodes_to_exclude(failed) == ("a",)
    assert nodes_to_exclude(failed, after=3) == ()
    assert nodes_to_exclude(failed, after=1) == ("a", "b")
    # One that was suspected in the last attempt, at once.
    suspected = attempt("F", 2, node="a", suspected=("c",))
    assert nodes_to_exclude([attempt("F", 1, node="b"), suspected]) == ("c",)
    assert nodes_to_exclude([attempt("P", 1, suspected=("c",))]) == ("c",)
    # A failure that looks the same everywhere is the program's.
    why = "rank {0}: ValueError at 0x7f{0}, step {0}00"
    same = [attempt("F", number, node=node, why=why.format(number)) for number, node in enumerate("abab", 1)]
    assert nodes_to_exclude(same) == ()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_case_of_the_table(case: Case) -> None:
    found = chain(case.letters.upper(), seconds=case.seconds or 10.0, steps=case.steps)
    attempts = tuple(
        replace(each, witnessed=letter not in "pE", ended=None if letter == "N" else each.ended)
        for each, letter in zip(found.attempts, case.letters, strict=True)
    )
    assert (len(failures_in_a_row(attempts)), len(idle_in_a_row(attempts))) == (case.failures, case.idle)
    assert decide(Chain(1, 0.0, attempts), Limits()).goes_on == case.goes_on


def test_the_job_script_of_nemo_run_counts_as_the_policy_does(tmp_path: Path) -> None:
    template = files("holdfast.integrations").joinpath("nemo_run/templates/job.sh.j2").read_text()
    script = template[template.index("holdfast_count() {") : template.index("# From the journal of this")]
    script = f"HOLDFAST_LONG_ENOUGH=300\n{script}\n"
    for case in CASES:
        results = tmp_path / str(case)
        results.write_text("".join(_line(case, number) for number in range(len(case.letters))))
        script += f"JOB_RESULTS_FILE='{results}'\nholdfast_count\necho $failures $idle\n"
    expected = [f"{case.failures} {case.idle}" for case in CASES]
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == expected


def _line(case: Case, number: int) -> str:
    """As the job script writes it."""
    letter = case.letters[number]
    if letter == "N":
        return f"7 {number} X\n"
    ran = case.seconds[number] if case.seconds else 10
    step = case.steps[number] if case.steps else None
    is_short = letter in "pE" and ran < LONG_ENOUGH
    idle = is_short or (letter in "pET" and step is not None)
    told = {"F": "F", "E": "U"}.get(letter, "P")
    return f"7 {number} {told} {'-' if step is None else step} {int(idle)} {ran}\n"


def test_a_checkpoint_is_suspect_after_two_attempts_without_a_step() -> None:
    without = {"checkpoint": "b", "took_steps": False}
    for second, third, named in (
        (without, without, True),
        (without, {"checkpoint": "c", "took_steps": False}, False),
        ({"checkpoint": "b", "took_steps": True}, without, False),
        (without, {}, False),
    ):
        attempts = (attempt("P", 1, checkpoint="a"), attempt("F", 2, **second), attempt("F", 3, **third))
        why = decide(Chain(1, 0.0, attempts), Limits()).why
        assert ("after b was loaded; a was trained from" in why) == named
