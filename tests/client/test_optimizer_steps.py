"""Steps that are counted for a program that says nothing: what its board shows, and that a client comes first."""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import itertools
import json
import os
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import optimizer as torchs

from holdfast.fault_tolerance import RankMonitorClient, optimizer_steps
from holdfast.fault_tolerance.board import Board
from holdfast.fault_tolerance.monitor.deadlines import Suspensions, deadlines
from tests.clients import ASKED, Arm, prologue

LISTED = "HOLDFAST_MODULES_FILE"


def optimizer(kind: Any = torch.optim.SGD) -> torch.optim.Optimizer:
    """One that has a gradient to apply."""
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.ones(2)
    made: torch.optim.Optimizer = kind([weight], lr=0.1)
    return made


def test_each_step_is_a_heartbeat_with_its_number(
    arm: Arm, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm()
    limits = board.snapshot().limits
    sgd = optimizer()
    for _ in range(4):
        sgd.step()
    time.sleep(0.01)
    sgd.step()
    seen = board.snapshot()
    assert (seen.step, seen.heartbeat_count, seen.connected, seen.counted) == (5, 5, False, True)
    assert [(event.kind, event.value) for event in board.events()] == [("step", each) for each in range(1, 6)]
    times = [event.at_ns for event in board.events()]
    assert (seen.first_step_ns, seen.last_heartbeat_ns) == (times[0], times[-1])
    assert (
        seen.longest_step_ns
        == max(after - before for before, after in itertools.pairwise(times))
        >= 10_000_000
    )
    assert seen.limits == limits
    assert seen.consistent


def test_nothing_is_counted_that_nobody_asked_for(fresh: None, board: Board) -> None:
    before = dict(torchs._global_optimizer_post_hooks)
    prologue("optimizer_hook").arm({ASKED: ""})
    optimizer().step()
    assert board.snapshot().heartbeat_count == 0
    assert dict(torchs._global_optimizer_post_hooks) == before


@pytest.mark.parametrize(
    ("stepping", "step"),
    [
        ("abababab", 4),  # a GAN
        ("abcabcabc", 3),  # an optimizer for each parameter
        ("aabaabaab", 6),  # one steps more often: each of its steps counts
        ("aaabbb", 5),  # one training after another: the first step of the second ends the last of the first
        ("aaab", 3),
    ],
)
def test_a_step_is_over_when_one_steps_that_has_stepped(
    arm: Arm, board: Board, stepping: str, step: int
) -> None:
    arm()
    all_of_them = {name: optimizer() for name in "abc"}
    for name in stepping:
        all_of_them[name].step()
    assert (board.snapshot().step, board.snapshot().heartbeat_count) == (step, len(stepping))


def test_a_step_with_many_evaluations_is_one(arm: Arm, board: Board) -> None:
    arm()
    weight = torch.nn.Parameter(torch.ones(2))
    lbfgs, evaluations = torch.optim.LBFGS([weight], max_iter=5), []

    def closure() -> Any:
        lbfgs.zero_grad()
        loss = (weight**4).sum()
        loss.backward()
        evaluations.append(loss)
        return loss

    lbfgs.step(closure)
    lbfgs.step(closure)
    assert len(evaluations) > 4
    assert board.snapshot().step == 2


def test_a_client_that_is_there_first_is_the_only_one_that_counts(arm: Arm, board: Board) -> None:
    arm()
    client = RankMonitorClient()
    client.init_workload_monitoring()
    sgd = optimizer()
    for step in range(5):
        sgd.step()
        client.heartbeat(step)
    assert (board.snapshot().heartbeat_count, board.snapshot().step) == (5, 4)
    client.shutdown_workload_monitoring()
    sgd.step()
    assert (board.snapshot().heartbeat_count, board.snapshot().finished) == (5, True)


@pytest.mark.parametrize("steps", [1, 3, 7])
def test_a_client_that_comes_later_begins_as_if_nothing_had_been_counted(
    arm: Arm, board: Board, steps: int
) -> None:
    arm()
    sgd = optimizer()
    for _ in range(steps):
        sgd.step()
    assert board.snapshot().step == steps
    client = RankMonitorClient()
    client.init_workload_monitoring()
    seen = board.snapshot()
    assert (seen.heartbeat_count, seen.step, seen.connected, seen.counted) == (0, None, True, False)
    assert (seen.longest_step_ns, seen.first_step_ns) == (0, 0)
    assert [event.kind for event in board.events()] == ["connect"]
    assert [limit.reason for limit in deadlines(seen, Suspensions())] == ["initial_heartbeat"]
    sgd.step()
    client.heartbeat(4150)
    sgd.step()
    seen = board.snapshot()
    assert (seen.heartbeat_count, seen.step) == (1, 4150)
    assert [limit.reason for limit in deadlines(seen, Suspensions())] == ["heartbeat"]
    client.shutdown_workload_monitoring()
    sgd.step()
    assert board.snapshot().heartbeat_count == 1


def test_a_client_that_begins_within_a_step(arm: Arm, board: Board) -> None:
    """As a hook of the program's own might: torch is going over its hooks at this moment."""
    arm()
    client = RankMonitorClient()
    calls: list[int] = []

    def begins(*_: object) -> None:
        calls.append(1)
        if len(calls) == 6:
            client.init_workload_monitoring()

    torchs.register_optimizer_step_post_hook(begins)
    sgd = optimizer()
    sgd.register_step_post_hook(begins)
    for _ in range(6):
        sgd.step()
    assert (board.snapshot().heartbeat_count, board.snapshot().connected) == (0, True)
    client.shutdown_workload_monitoring()


def test_a_client_that_begins_while_another_thread_steps(
    arm: Arm, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for turn in range(30):
            for name, value in (("_taken", False), ("_counted", None), ("_ended", None)):
                monkeypatch.setattr(optimizer_steps, name, value)
            arm()
            beats = begins_meanwhile(turn / 10_000)
            assert beats <= turn  # those of the clients before; what was counted is taken back
            assert (board.snapshot().heartbeat_count - beats, board.snapshot().step) == (1, 4150)
    finally:
        sys.setswitchinterval(interval)


def begins_meanwhile(delay: float) -> int:
    """A client begins and sends one heartbeat so long after a thread has begun to step; returns the count before."""
    sgd, over, taken = optimizer(), threading.Event(), [0]

    def steps() -> None:
        while not over.is_set():
            sgd.step()
            taken[0] += 1

    thread = threading.Thread(target=steps)
    thread.start()
    time.sleep(delay)
    client = RankMonitorClient()
    client.init_workload_monitoring()
    before: int = client._ready()._beats
    client.heartbeat(4150)
    while taken[0] < 3:
        time.sleep(0.001)
    over.set()
    thread.join()
    client.shutdown_workload_monitoring()
    return before


def test_a_forked_child_does_not_count(arm: Arm, board: Board) -> None:
    def child_steps() -> None:
        if (pid := os.fork()) == 0:
            try:
                sgd.step()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)

    arm()
    sgd = optimizer()
    child_steps()
    assert board.snapshot().heartbeat_count == 0  # nor did it begin the counting in the parent's place
    for _ in range(4):
        sgd.step()
    child_steps()
    assert board.snapshot().heartbeat_count == 4


@pytest.mark.parametrize("missing", ["holdfast", "the board"])
def test_training_goes_on_where_nothing_can_be_counted(
    arm: Arm, board: Board, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "holdfast":
        monkeypatch.delattr("holdfast.fault_tolerance.optimizer_steps")
        monkeypatch.setitem(sys.modules, "holdfast.fault_tolerance.optimizer_steps", None)
    else:
        monkeypatch.setenv("FT_RANK_MONITOR_IPC_SOCKET", "/dev/null")
    arm()
    sgd = optimizer()
    for _ in range(5):
        sgd.step()
    assert float(sgd.param_groups[0]["params"][0].detach()[0]) == pytest.approx(-0.5)
    assert board.snapshot().heartbeat_count == 0


class Own(torch.optim.Optimizer):
    """One that torch.compile can take as a whole; it cannot with torch's own."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                weight.add_(weight.grad, alpha=-group["lr"])


@pytest.mark.slow
def test_the_hook_is_nothing_to_torch_compile(arm: Arm, board: Board) -> None:
    """No graph break (`fullgraph` would raise), no further compilation, before and after it has begun to count."""
    import torch._dynamo.testing

    arm()
    for begun in (False, True):
        counter = torch._dynamo.testing.CompileCounter()
        own = optimizer(Own)
        compiled = torch.compile(own.step, backend=counter, fullgraph=True)
        for _ in range(12):
            compiled()
        assert counter.frame_count == 1
        assert board.snapshot().heartbeat_count == 5 * begun
        if not begun:
            eager = optimizer()
            for _ in range(5):
                eager.step()
    torch._dynamo.reset()


class TestWhenTorchIsImported:
    """The finder, which a rank has until then."""

    @pytest.fixture
    def told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
        """The modules that it received; it waits for one that fails as long as there is a file `fails`."""
        text = "import os\nif os.path.exists(os.path.dirname(__file__) + '/fails'): 1 / 0\n"
        (tmp_path / "awaited_module.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
        told: list[Any] = []
        prologue("optimizer_hook")._after_import("awaited_module", told.append)
        yield told
        sys.modules.pop("awaited_module", None)

    def test_it_tells_and_disappears(self, told: list[Any]) -> None:
        before = sys.meta_path[1:]
        assert importlib.util.find_spec("awaited_module") is not None  # code that only looks it up
        assert not told
        module = importlib.import_module("awaited_module")
        assert told == [module] and sys.meta_path == before
        assert module.__spec__ is not None and "exec_module" not in vars(module.__spec__.loader)

    def test_a_module_that_fails_fails_as_ever(self, told: list[Any], tmp_path: Path) -> None:
        (tmp_path / "fails").touch()
        with pytest.raises(ZeroDivisionError):
            importlib.import_module("awaited_module")
        assert not told
        (tmp_path / "fails").unlink()
        module = importlib.import_module("awaited_module")
        assert told == [module]

    def test_a_module_that_is_not_there(self, told: list[Any], tmp_path: Path) -> None:
        (tmp_path / "awaited_module.py").unlink()
        importlib.invalidate_caches()
        with pytest.raises(ModuleNotFoundError, match="No module named 'awaited_module'"):
            importlib.import_module("awaited_module")


class TestTheListOfModules:
    @pytest.fixture
    def save(self, tmp_path: Path) -> Iterator[Any]:
        """Of a process that is the first rank of its node."""
        environment = {LISTED: str(tmp_path / "modules.json"), "LOCAL_RANK": "0"}
        save = prologue("optimizer_hook").save_modules(environment)
        assert environment == {"LOCAL_RANK": "0"}
        yield save
        atexit.unregister(save)

    def test_after_the_third_step_it_has_what_is_imported(self, arm: Arm, save: Any, tmp_path: Path) -> None:
        arm(save)
        sgd = optimizer()
        sgd.step()
        sgd.step()
        assert not list(tmp_path.iterdir())
        sgd.step()
        listed = json.loads((tmp_path / "modules.json").read_text())
        names = [name for name, _ in listed]
        # In the order in which they were complete.
        assert names.index("sys") < names.index("torch.optim.optimizer") < names.index("torch")
        assert ["torch", torch.__file__] in listed and ["sys", "built-in"] in listed
        assert [path.name for path in tmp_path.iterdir()] == ["modules.json"]

    def test_with_modules_that_are_none(
        self, save: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Nasty(types.ModuleType):
            def __getattr__(self, name: str) -> Any:
                raise RuntimeError(name)

        for name, module in {"nasty": Nasty("nasty"), "none": None, "number": 7}.items():
            monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]
        save("exit")
        listed = json.loads((tmp_path / "modules.json").read_text())
        assert [entry for entry in listed if entry[0] in ("nasty", "none", "number")] == [
            ["nasty", None],
            ["none", None],
            ["number", None],
        ]

    def test_it_never_raises(self, save: Any, tmp_path: Path) -> None:
        tmp_path.rmdir()
        save("exit")

    @pytest.mark.parametrize(
        "environment", [{"LOCAL_RANK": "0"}, {LISTED: "x", "LOCAL_RANK": "1"}, {LISTED: "x"}]
    )
    def test_nobody_else_writes_one(self, environment: dict[str, str]) -> None:
        assert prologue("optimizer_hook").save_modules(environment) is None
        assert LISTED not in environment
