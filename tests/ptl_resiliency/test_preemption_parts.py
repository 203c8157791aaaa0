"""The parts of a preemption: signals and their handlers, data loader workers, time left, places."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from holdfast.fault_tolerance.stop import END
from holdfast.ptl_resiliency import PreemptionCallback
from holdfast.ptl_resiliency.loader_workers import Loaders, Staying
from holdfast.ptl_resiliency.notices import Notices, keep_lightning_off
from holdfast.ptl_resiliency.patches import Patches
from holdfast.ptl_resiliency.stopping_place import MOST_BATCHES, ValidationPlaces, batches_between
from holdfast.ptl_resiliency.time_left import TimeLeft, shortage, time_left
from tests.processes import Spawner
from tests.ptl_resiliency.preempted import Numbers

USR1, TERM = int(signal.SIGUSR1), int(signal.SIGTERM)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (USR1, TERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("sig", [USR1, signal.SIGUSR1, "SIGUSR1", "usr1", " SigUsr1 "])
def test_a_signal_in_all_its_spellings(sig: Any) -> None:
    assert PreemptionCallback(sig).sig == PreemptionCallback(sig=sig).sig == USR1


def test_sigterm_unless_told() -> None:
    assert PreemptionCallback().sig == PreemptionCallback(None).sig == TERM


@pytest.mark.parametrize(
    ("sig", "why"),
    [
        (signal.SIGKILL, "SIGKILL asks for no stop: it cannot be caught"),
        ("SIGSTOP", "it cannot be caught"),
        (signal.SIGSEGV, "it means a crash"),
        ("CHLD", "it says that a child ended"),
        ("SIGNOTHING", "no signal; allowed is a number or a name"),
        (0, "no signal"),
        (4711, "no signal"),
        (True, "no signal"),
        (15.0, "no signal"),
        ("", "no signal"),
    ],
)
def test_what_is_no_signal_to_listen_for(sig: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        PreemptionCallback(sig)


def test_a_handler_notes_the_first_signal_and_tells_of_each() -> None:
    notices, told = Notices({USR1, TERM}), []
    notices.tell = told.append
    assert notices.install() and notices.install()
    signal.raise_signal(USR1)
    signal.raise_signal(TERM)
    notices.restore()
    notices.restore()
    assert (notices.number, told) == (USR1, [USR1, TERM])
    assert signal.getsignal(USR1) == signal.getsignal(TERM) == signal.SIG_DFL


def _other(_number: int, _frame: object) -> None:
    """Somebody's handler."""


def test_a_handler_that_another_set_meanwhile_stays() -> None:
    notices = Notices({USR1})
    notices.install()
    signal.signal(USR1, _other)
    notices.restore()
    assert signal.getsignal(USR1) is _other


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_at_once_none_stays(order: tuple[int, int]) -> None:
    signal.signal(USR1, _other)
    both = Notices({USR1}), Notices({USR1})
    for each in both:
        each.install()
    for index in order:
        both[index].restore()
    assert signal.getsignal(USR1) is _other


def test_another_lightning_without_such_a_connector() -> None:
    patches = Patches()
    keep_lightning_off(None, {USR1}, patches)
    keep_lightning_off(object(), {USR1}, patches)
    patches.undo()


def _run(runs: Any) -> None:
    runs.set()
    while True:
        time.sleep(0.01)


def test_a_forked_child_takes_the_signal_as_it_would_without_us() -> None:
    notices = Notices({TERM})
    notices.install()
    try:
        context = multiprocessing.get_context("fork")
        runs = context.Event()
        child = context.Process(target=_run, args=(runs,))
        child.start()
        assert runs.wait(30)
        child.terminate()
        child.join(30)
        assert child.exitcode == -TERM
    finally:
        notices.restore()


class Asked(Numbers):
    """Says what the worker does on the signals: its item is 1 for each that has our handler."""

    def __getitem__(self, index: int) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGUSR1)
        return torch.tensor([float(os.environ.get("WORKER", "-1"))])


def _users_init(worker_id: int) -> None:
    os.environ["WORKER"] = str(worker_id)


def test_workers_survive_the_signals_and_run_the_users_function() -> None:
    loader = DataLoader(Asked(), batch_size=4, num_workers=1, worker_init_fn=_users_init)
    loaders = Loaders({TERM, USR1})
    loaders.protect(loader, 0)
    loaders.protect(loader, 0)  # as a second fit of the same trainer does
    pickle.loads(pickle.dumps(loader.worker_init_fn))  # for workers that are spawned
    assert sum(batch.sum().item() for batch in loader) == 0.0
    loaders.undo()
    assert loader.worker_init_fn is _users_init


def test_lightnings_seeding_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PL_SEED_WORKERS", "1")
    loader = DataLoader(Numbers(), num_workers=1)
    Loaders({TERM}).protect(loader, 3)
    staying = loader.worker_init_fn
    assert isinstance(staying, Staying) and isinstance(staying.then, partial)
    assert staying.then.func.__name__ == "pl_worker_init_function" and staying.then.keywords == {"rank": 3}


def test_other_loaders_are_left_alone() -> None:
    inline = DataLoader(Numbers())
    loaders = Loaders({TERM})
    for each in (inline, [1, 2], object(), None):
        loaders.protect(each, 0)
    assert inline.worker_init_fn is None


LEFT = """
import signal, time, torch
from torch.utils.data import DataLoader
from holdfast.ptl_resiliency.loader_workers import Loaders

class Sticky:
    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index == 8:
            time.sleep(3600)
        return torch.zeros(1)

loader = DataLoader(Sticky(), batch_size=4, num_workers=1)
Loaders({signal.SIGTERM}).protect(loader, 0)
left = iter(loader)
next(left)
print("leaving", flush=True)
"""


def test_workers_that_are_left_do_not_hold_up_the_end(spawn: Spawner, tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    process = spawn.python(LEFT, env={"PYTHONPATH": f"{root}/src:{root}", "TMPDIR": str(tmp_path)})
    process.wait_for("leaving")
    assert process.wait(20) == 0  # without us it takes no time, and with a handler alone it never ends


def test_the_nearest_end_counts() -> None:
    slurm = {"SLURM_JOB_END_TIME": "1050"}
    find: Callable[..., TimeLeft | None] = partial(time_left, monotonic=100.0, wall=1000.0)
    assert find(None, {}) is None
    assert find(None, {"SLURM_JOB_END_TIME": "soon"}) is None
    assert find(None, slurm) == TimeLeft(50.0, "Slurm's SLURM_JOB_END_TIME")
    assert find(130.0, slurm) == TimeLeft(30.0, "ft_launcher's --term-timeout")
    assert find(190.0, slurm) == TimeLeft(50.0, "Slurm's SLURM_JOB_END_TIME")


def test_too_little_time_in_words() -> None:
    left = TimeLeft(12.34, "Slurm's SLURM_JOB_END_TIME")
    assert shortage(left, 40.0) == (
        "Preemption: 12.3 s are left (Slurm's SLURM_JOB_END_TIME), and the last checkpoint took 40.0 s to save: this "
        "one may not be complete in time; it is tried all the same, and until it is complete the one before it stays"
    )
    assert "0.0 s are left" in str(shortage(TimeLeft(-3.0, "x"), 1.0))
    assert shortage(left, 12.0) is shortage(left, None) is shortage(None, 40.0) is None


def test_places_of_a_validation_rise_and_meet_at_the_end_of_each_loader() -> None:
    few, many = ValidationPlaces(), ValidationPlaces()
    ends = []
    for places, batches in ((few, (2, 0)), (many, (3, 70_000))):
        seen = [places.start()]
        for count in batches:
            seen += [places.after_batch() for _ in range(count)]
            seen.append(places.after_loader())
            ends.append(seen[-1])
        assert seen == sorted(seen) and len(set(seen[:4])) == 4
        assert places.start() == 1
    assert ends[:2] == ends[2:]


def test_places_of_very_many_loaders_stay_before_the_end() -> None:
    places = ValidationPlaces()
    assert all(places.after_loader() < END for _ in range(1000))


def test_how_often_ranks_ask_each_other() -> None:
    assert [batches_between(step, 0.1) for step in (10.0, 0.1, 0.002, 0.0)] == [1, 1, 50, MOST_BATCHES]
    assert batches_between(0.002, 10.0) == 5000
    assert batches_between(sys.float_info.min, 0.1) == MOST_BATCHES
