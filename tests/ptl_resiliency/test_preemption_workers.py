"""Data loader workers that outlive the signals, and how they and other children end."""

from __future__ import annotations

import os
import pickle
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from holdfast.callbacks.signals import Staying, StayingWorkers
from holdfast.ptl_resiliency.framework import seeding
from tests.processes import Spawner
from tests.ptl_resiliency.preempted import Numbers

USR1, TERM = int(signal.SIGUSR1), int(signal.SIGTERM)
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
    assert process.wait(20) == 0  # without us it takes no time, and with a handler alone it never ends
    assert "FLUSHED" in process.out() and not process.err()
    assert not list(tmp_path.glob("pymp-*"))
