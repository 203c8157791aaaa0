"""Arming: by environment, code, context manager or parameters; at a step or after a delay; on the right rank."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.testing import KINDS, Fault, Faults, FaultSpecError, InjectedFault, SimulatedFaultParams, inject
from holdfast.testing.injector import WAKE_SIGNAL, JobPlace, delay, resolve
from tests.processes import Spawner

BOOM = Fault("exception", step=3)


def test_a_fault_happens_at_its_step_and_only_once() -> None:
    faults = Faults([BOOM])
    for step in range(3):
        faults.at_step(step)
    with pytest.raises(InjectedFault, match="exception@step=3"):
        faults.at_step(3, "data_loading")  # the first call of the step
    faults.at_step(3)
    Faults([BOOM]).at_step(4)  # does not make up for a missed step


def test_a_point_chooses_among_the_calls_of_a_step() -> None:
    faults = Faults([Fault("exception", step=3, point="checkpointing")])
    faults.at_step(3)
    faults.at_step(3, "data_loading")
    with pytest.raises(InjectedFault):
        faults.at_step(3, "checkpointing")


def test_several_faults_of_one_step_happen_in_their_order() -> None:
    faults = inject("exception@step=1,message=first;exception@step=1,message=second")
    for message in ("first", "second"):
        with pytest.raises(InjectedFault, match=message):
            faults.at_step(1)


@pytest.mark.parametrize(
    ("where", "happens"),
    [
        ({"rank": 0}, False),
        ({"rank": 1}, True),
        ({"rank": "all"}, True),
        ({"rank": 1, "cycle": 0}, False),
        ({"rank": 1, "cycle": 1}, True),
        ({"rank": 1, "cycle": "each"}, True),
    ],
)
def test_it_happens_on_its_rank_in_its_cycle(where: dict[str, int | str], happens: bool) -> None:
    place = JobPlace(rank=1, world_size=2, cycle=1 if "cycle" in where else 0)
    with pytest.raises(InjectedFault) if happens else nullcontext():
        Faults([Fault("exception", step=1, **where)], place).at_step(1)


def test_a_rank_that_does_not_exist_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    for rank in range(2):
        Faults([Fault("kill", step=1, rank=5)], JobPlace(rank, 2)).at_step(1)
    assert capfd.readouterr().err.count("will not happen: this job has 2 ranks") == 1


def test_no_environment_means_no_fault() -> None:
    for environ in ({}, {"HOLDFAST_FAULT": " "}):
        Faults.from_env(environ).at_step(0)


def test_the_end_of_the_block_disarms() -> None:
    with inject("exception@step=1;exception@after=1h;kill@after=1h") as faults:
        assert _fault_threads()
    assert not _fault_threads()
    faults.at_step(1)
    assert signal.getsignal(WAKE_SIGNAL) == signal.SIG_DFL


def test_inject_takes_every_form() -> None:
    for form in (
        "exception@after=0s",
        Fault("exception", after=0.0),
        [Fault("exception", after=0.0)],
        SimulatedFaultParams("exception", 0.0),
        {"fault_type": "exception", "base_delay": 0.0},
    ):
        with pytest.raises(InjectedFault), inject(form):
            time.sleep(60)  # until something interrupts it


def test_a_delayed_exception_cannot_be_armed_outside_the_main_thread() -> None:
    with ThreadPoolExecutor() as threads, pytest.raises(FaultSpecError, match="main thread"):
        threads.submit(inject, "exception@after=0s").result()


def test_a_delayed_kill_does_not_wait_for_the_main_thread(spawn: Spawner) -> None:
    # A GIL that is free and a main thread that never returns from C.
    code = "import ctypes\nfrom holdfast.testing import inject\ninject('kill@after=0.05s')\n"
    rank = spawn.python(code + "while True: ctypes.CDLL(None).pause()")
    assert rank.wait() == -signal.SIGKILL


def test_four_processes_choose_one_rank_between_them(spawn: Spawner) -> None:
    code = "from holdfast.testing import Faults\nFaults.from_env().at_step(0)\nprint('alive')"
    shared = {"HOLDFAST_FAULT": "kill@step=0", "WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "one"}
    ranks = [spawn.python(code, env={**shared, "RANK": str(rank)}) for rank in range(4)]
    assert sorted(rank.wait() for rank in ranks) == [-signal.SIGKILL, 0, 0, 0]


def test_no_torch_is_imported(spawn: Spawner) -> None:
    code = "import sys\nfrom holdfast.testing import *\nFaults.from_env().at_step(0)\n"
    code += "print({'torch', 'numpy', 'yaml', 'rich'} & set(sys.modules))"
    process = spawn.python(code, env={"HOLDFAST_FAULT": "deadlock@step=1"})
    assert process.wait() == 0
    assert process.out() == "set()\n"


def _fault_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast-fault")]


# -- which rank, and when --------------------------------------------------------------------------------------


@given(
    st.integers(1, 64), st.integers(0, 20), st.text(max_size=5), st.none() | st.integers(), st.integers(0, 3)
)
def test_exactly_one_rank_is_chosen_and_all_agree_on_it(
    world_size: int, cycle: int, job: str, seed: int | None, index: int
) -> None:
    fault = Fault("kill", step=1, seed=seed, cycle="each")
    places = [JobPlace(rank, world_size, cycle, job) for rank in range(world_size)]
    resolved = [resolve(fault, index, place) for place in places]
    assert len(set(resolved)) == 1
    assert resolved[0].rank in range(world_size)


def test_a_seed_makes_the_choice_that_of_every_job_and_cycles_differ() -> None:
    seeded = Fault("random", step=1, seed=3)
    assert resolve(seeded, 0, JobPlace(0, 8, 0, "one")) == resolve(seeded, 0, JobPlace(0, 8, 0, "other"))
    fault = Fault("kill", step=1)
    assert len({resolve(fault, 0, JobPlace(0, 8, 0, f"job {n}")).rank for n in range(50)}) > 3
    seeded = replace(fault, seed=0)
    assert len({resolve(seeded, 0, JobPlace(0, 8, cycle, "")).rank for cycle in range(50)}) > 3


def test_every_rank_and_both_kinds_come_up_about_equally_often() -> None:
    drawn = [resolve(Fault("random", step=1, seed=n), 0, JobPlace(0, 4)) for n in range(1000)]
    assert min(Counter(fault.rank for fault in drawn).values()) > 180
    kinds = Counter(fault.kind for fault in drawn)
    assert set(kinds) == {"kill", "stop"} and min(kinds.values()) > 400


@given(st.floats(0, 100), st.floats(0, 100), st.integers())
def test_a_delay_is_base_plus_up_to_rand(after: float, rand: float, seed: int) -> None:
    assert after <= delay(Fault("kill", after=after, rand=rand, seed=seed), 0, JobPlace()) <= after + rand


def test_the_place_comes_from_what_torchrun_sets() -> None:
    environ = {"RANK": "3", "WORLD_SIZE": "4", "TORCHELASTIC_RESTART_COUNT": "2"}
    environ["TORCHELASTIC_RUN_ID"] = "abc"
    place = JobPlace.from_environ(environ)
    assert (place.rank, place.world_size, place.cycle) == (3, 4, 2)
    assert place.job != JobPlace.from_environ(environ | {"TORCHELASTIC_RUN_ID": "abd"}).job


@pytest.mark.parametrize(("name", "text"), [("RANK", "one"), ("WORLD_SIZE", "0"), ("WORLD_SIZE", "-2")])
def test_a_broken_environment_is_named(name: str, text: str) -> None:
    with pytest.raises(FaultSpecError, match=f"{name}='{text}'"):
        JobPlace.from_environ({name: text})


# -- SimulatedFaultParams: the documented arguments and defaults, and the message to the user about a mistake


@pytest.mark.parametrize(
    ("fault_type", "kind"), [("rank_killed", "kill"), ("rank_hung", "stop"), *((k, k) for k in KINDS)]
)
def test_every_fault_type_is_a_fault_of_every_cycle(fault_type: str, kind: str) -> None:
    params = SimulatedFaultParams(fault_type, 5, 2.0, 3)
    assert params.to_fault() == Fault(kind, after=5, rand=2.0, rank=3, cycle="each")
    assert SimulatedFaultParams(fault_type, base_delay=5).to_fault() == Fault(kind, after=5, cycle="each")


HUNG = {"fault_type": "rank_hung", "base_delay": 1}


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({**HUNG, "fault_type": "rank_hangs"}, "unknown fault 'rank_hangs' (did you mean 'rank_hung'?)"),
        ({**HUNG, "fault_type": "foo"}, "; documented names: rank_killed, rank_hung, random"),
        ({**HUNG, "fault_type": 9}, "a fault's kind is a name"),
        ({"fault_type": "rank_hung"}, "base_delay is missing"),
        ({"base_delay": 1}, "fault_type is missing"),
        ({**HUNG, "base_delay": "1"}, "after is a number of seconds from 0, not '1'"),
        ({**HUNG, "base_delay": -1}, "not -1"),
        ({**HUNG, "rand_delay": float("nan")}, "rand is a number"),
        ({**HUNG, "rank_to_fail": -1}, "rank is a whole number"),
        ({**HUNG, "rank_to_fail": "all"}, "rank_to_fail is a rank or None"),
        ({**HUNG, "rank": 1}, "unknown key 'rank'"),
        (["rank_hung", 1], "a mapping is needed"),
    ],
)
def test_a_mistake_is_a_clear_value_error(params: Any, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        SimulatedFaultParams.parse(params)
    assert str(caught.value).startswith("Failed to parse simulated fault params, ")
    assert words in str(caught.value)
