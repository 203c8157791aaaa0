"""Parts of a preemption: places, shortage of time, signals and handlers, workers that stay, ranks that listen."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from holdfast.callbacks.preemption import MOST_BATCHES, batches_between, shortage
from holdfast.callbacks.signals import Notices, Staying, StayingWorkers
from holdfast.fault_tolerance.board.values import FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR
from holdfast.fault_tolerance.stop.page import ASKED, PageFile, page_path, write
from holdfast.fault_tolerance.stop.rules import WITHDRAW, Word
from holdfast.ptl_resiliency import PreemptionCallback
from holdfast.ptl_resiliency.callbacks import ValidationPlaces
from holdfast.ptl_resiliency.framework import seeding
from tests.processes import Spawner
from tests.ptl_resiliency.preempted import Numbers

SLURM = {"SLURM_JOB_END_TIME": "1050"}


@pytest.mark.parametrize(
    ("last_save", "deadline", "environ", "said"),
    [
        (None, 110.0, SLURM, ""),
        (60.0, None, {}, ""),
        (60.0, None, {"SLURM_JOB_END_TIME": "soon"}, ""),
        (60.0, None, SLURM, "50.0 s are left (Slurm's SLURM_JOB_END_TIME)"),
        (60.0, 130.0, SLURM, "30.0 s are left (ft_launcher's --term-timeout)"),
        (60.0, 190.0, SLURM, "50.0 s are left (Slurm's SLURM_JOB_END_TIME)"),
        (50.0, 190.0, SLURM, ""),
        (1.0, 97.0, {}, "0.0 s are left"),
    ],
)
def test_the_nearest_end_counts(
    last_save: float | None, deadline: float | None, environ: dict[str, str], said: str
) -> None:
    line = shortage(last_save, deadline, environ, monotonic=100.0, wall=1000.0)
    assert said in line and bool(said) == bool(line)


def test_too_little_time_in_words() -> None:
    assert shortage(40.0, None, {"SLURM_JOB_END_TIME": "1012.34"}, monotonic=0.0, wall=1000.0) == (
        "Preemption: 12.3 s are left (Slurm's SLURM_JOB_END_TIME), and the last checkpoint took 40.0 s to save: this "
        "one may not be complete in time; it is tried all the same, and until it is complete the one before it stays"
    )


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


def test_how_often_ranks_ask_each_other() -> None:
    steps = (10.0, 0.1, 0.002, sys.float_info.min, 0.0)
    assert [batches_between(step) for step in steps] == [1, 1, 50, MOST_BATCHES, MOST_BATCHES]


# -- the signals that a preemption callback listens for, and their handlers


USR1, TERM = int(signal.SIGUSR1), int(signal.SIGTERM)


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
        (signal.SIGRTMIN, "a real-time signal is not possible here"),
        (signal.SIGRTMIN + 1, "ft_launcher has no name by which to pass it on"),
        ("RTMAX", "a real-time signal"),
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


def test_a_signal_that_nobody_needed_may_do_what_it_would_have_done() -> None:
    came: list[int] = []
    signal.signal(USR1, lambda number, frame: came.append(number))
    notices = Notices({USR1})
    notices.install()
    notices.restore()
    notices.raise_again()
    assert came == []
    notices = Notices({USR1})
    notices.install()
    signal.raise_signal(USR1)
    notices.restore()
    notices.raise_again()
    assert came == [USR1]


def _other(_number: int, _frame: object) -> None:
    """The handler of another library."""


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
        assert runs.wait(60)
        child.terminate()
        child.join(60)
        assert child.exitcode == -TERM
    finally:
        notices.restore()


# -- data loader workers that outlive the signals, and how they and other children end


ROOT = Path(__file__).resolve().parents[2]


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
    loaders = StayingWorkers({TERM, USR1})
    loaders.of(loader)
    loaders.of(loader)  # as a second fit of the same trainer does
    pickle.loads(pickle.dumps(loader.worker_init_fn))  # for workers that are spawned
    assert sum(batch.sum().item() for batch in loader) == 0.0
    loaders.undo()
    assert loader.worker_init_fn is _users_init


def test_lightnings_seeding_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PL_SEED_WORKERS", "1")
    loader = DataLoader(Numbers(), num_workers=1)
    StayingWorkers({TERM}).of(loader, seeding(3))
    staying = loader.worker_init_fn
    assert isinstance(staying, Staying) and isinstance(staying.then, partial)
    assert staying.then.func.__name__ == "pl_worker_init_function" and staying.then.keywords == {"rank": 3}


def test_other_loaders_are_left_alone() -> None:
    inline = DataLoader(Numbers())
    loaders = StayingWorkers({TERM})
    for each in (inline, [1, 2], object(), None):
        loaders.of(each)
    assert inline.worker_init_fn is None


LEFT = """
import multiprocessing, os, signal, sys, time, torch
from torch.utils.data import DataLoader
from holdfast.callbacks.signals import StayingWorkers

class Sticky:
    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index == 8:
            time.sleep(3600)
        return torch.zeros(1)

def users_own(listens):
    def write(number, frame):
        time.sleep(2.0)  # longer than a worker gets
        os.write(1, b"FLUSHED\\n")
        os._exit(0)

    signal.signal(signal.SIGTERM, write)
    listens.set()
    while True:
        time.sleep(0.1)

loader = DataLoader(Sticky(), batch_size=4, num_workers=2)
StayingWorkers({signal.SIGTERM}).of(loader)
left = iter(loader)
next(left), next(left)
context = multiprocessing.get_context("fork")
listens = context.Event()
context.Process(target=users_own, args=(listens,), daemon=True).start()
listens.wait()
print("leaving", flush=True)
"""


def test_workers_that_are_left_are_ended_and_other_children_are_not(spawn: Spawner, tmp_path: Path) -> None:
    process = spawn.python(LEFT, env={"PYTHONPATH": f"{ROOT}/src:{ROOT}", "TMPDIR": str(tmp_path)})
    process.wait_for("leaving")
    assert process.wait(60) == 0  # without us it takes no time, and with a handler alone it never ends
    assert "FLUSHED" in process.out() and not process.err()
    assert not list(tmp_path.glob("pymp-*"))


# -- two ranks that come to `listening` when a stop was asked for already, or of which one has ended


RANK = """
import json, logging, os, sys
import torch.distributed as dist
from holdfast.callbacks.signals import Notices
from holdfast.side_group import CollectiveFailed
from holdfast.callbacks.preemption import find_way

logging.basicConfig()
folder, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)

def listening(case):
    os.environ["BOARD"] = f"{folder}/{case}-{rank}.board"
    way = find_way(Notices(set()))
    if case == "ended" and rank == 1:
        os._exit(0)
    try:
        answer = way.listening()
    except CollectiveFailed:
        answer = "disagreement"
    groups = len(dist.distributed_c10d._world.pg_map)
    goes_on = [way.begin(), way.after_batch(1), way.in_validation(1, 1), way.after_batch(2)]
    way.close()
    os.write(1, (json.dumps([case, rank, type(way).__name__, answer, groups, goes_on]) + chr(10)).encode())

for case in ("all know", "one knows", "withdrawn", "one has no page", "ended"):
    listening(case)
os._exit(0)
"""


@pytest.fixture
def pages(tmp_path: Path) -> Any:
    """By case and rank, where the ranks find them."""
    made = {}
    for case in ("all know", "one knows", "withdrawn", "one has no page", "ended"):
        for rank in (0, 1):
            if (case, rank) != ("one has no page", 1):
                made[case, rank] = PageFile.create(page_path(str(tmp_path / f"{case}-{rank}.board")))
    yield made
    for page in made.values():
        page.close()


def test_what_the_ranks_know_when_they_listen(
    spawn: Spawner, tmp_path: Path, pages: dict[tuple[str, int], PageFile]
) -> None:
    for case, rank in (("all know", 0), ("all know", 1), ("one knows", 0)):
        pages[case, rank].words[ASKED] = 15
    for rank in (0, 1):
        write(pages["withdrawn", rank].words, Word(WITHDRAW, 1))
    program = RANK.replace("BOARD", FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR)
    paths = {"PYTHONPATH": f"{ROOT}/src:{ROOT}"}
    ranks = [spawn.python(program, str(tmp_path), str(rank), env=paths) for rank in (0, 1)]
    for each in ranks:
        assert each.wait() == 0, each.output()
    said = [json.loads(line) for each in ranks for line in each.out().splitlines()]
    on = [False] * 4
    for rank in (0, 1):
        assert [line for line in said if line[1] == rank][:4] == [
            ["all know", rank, "Agreed", True, 1, on],
            ["one knows", rank, "Agreed", False, 1, on],  # its launcher knows, and sees to it
            ["withdrawn", rank, "Agreed", False, 1, on],
            ["one has no page", rank, "Together", False, 2, on],
        ]
    assert said[4:5] == [["ended", 0, "Agreed", "disagreement", 1, on]]  # soon, and not after half an hour
    assert ranks[0].err().count("the ranks train on until the launcher ends them") == 1
    assert "the ranks train on" not in ranks[1].err()
