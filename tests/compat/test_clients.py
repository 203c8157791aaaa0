"""What clients do with the names: the documents' code blocks, the calls of Megatron, and faults by name."""

from __future__ import annotations

import importlib
import importlib.util
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast import straggler
from holdfast.fault_tolerance.board import Board
from holdfast.testing import InjectedFault
from tests.compat import documents
from tests.compat.conftest import NAME
from tests.processes import Spawner


@pytest.mark.usefixtures("alias")
def test_the_hooks_of_megatron(board: Board) -> None:
    client = importlib.import_module(f"{NAME}.fault_tolerance").RankMonitorClient()
    client.init_workload_monitoring(num_warmup_iters=5)
    assert "setup 600.00 s" in str(client.section_timeouts)
    client.start_section("setup")
    client.end_section("setup")
    for name in ("step", "checkpointing"):
        client.start_section(name)
        client.end_section(name)
    client.calculate_and_set_section_timeouts(selected_sections=["setup", "step"], calc_out_of_section=False)
    assert client.state_dict()["current_timeouts"]["section"]["calculated_sections"] == ["setup", "step"]
    client.shutdown_workload_monitoring()
    assert board.snapshot().finished


@pytest.mark.usefixtures("alias")
def test_the_straggler_manager_of_megatron_bridge() -> None:
    straggler = importlib.import_module(f"{NAME}.attribution.straggler")

    class Step:
        def __init__(self) -> None:
            self.train_step = lambda number: number + 1

        def __call__(self, number: int) -> int:
            return self.train_step(number)

    step = Step()
    straggler.Detector.initialize(
        scores_to_compute=["relative_perf_scores", "individual_perf_scores"],
        gather_on_rank0=True,
        profiling_interval=1,
        report_time_interval=1e-9,
    )
    try:
        straggler.Detector.wrap_callables(callable_ids=[straggler.CallableId(step, "train_step")])
        reports = []
        for number in range(20):
            assert step(number) == number + 1
            report = straggler.Detector.generate_report_if_interval_elapsed()
            assert bool(report) == straggler.Detector.is_interval_elapsed()
            reports += [report] if report else []
    finally:
        straggler.Detector.shutdown()
    found = reports[-1].identify_stragglers(gpu_rel_threshold=0.7, gpu_indiv_threshold=0.7)
    assert not found["straggler_gpus_relative"] and not found["straggler_gpus_individual"]
    assert set(reports[-1].rank_to_node) == {0}


MEGATRON_CORE = """
from megatron.core.dist_checkpointing import tensor_aware_state_dict
from packaging.version import Version
import nvidia_resiliency_ext

assert not tensor_aware_state_dict.HAVE_NVRX  # it needs local checkpoints, and asks for those
assert Version(nvidia_resiliency_ext.__version__).release >= Version("0.6.0").release
"""


@pytest.mark.slow
def test_megatron_core_finds_out(spawn: Spawner, python: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("megatron") is None:
        pytest.skip("megatron-core is not installed: pip install --no-deps megatron-core")
    run = spawn([python, "-c", MEGATRON_CORE], env={"TMPDIR": str(tmp_path)})  # wandb leaves folders
    assert run.wait() == 0, run.output()


# -- every code block of the documents that imports `nvidia_resiliency_ext` runs, with its `...` filled in


PROGRAM = Path(__file__).parent / "programs" / "lightning_documents.py"


class DataLoaderClass:
    def get_next_batch(self) -> tuple[float, int]:
        return 1.0, 0


class ModelClass:
    def __call__(self, data: float) -> float:
        return self.forward(data)

    def forward(self, data: float) -> float:
        return sum(range(1000)) * data


@pytest.mark.usefixtures("alias")
def test_the_straggler_guide(monkeypatch: pytest.MonkeyPatch) -> None:
    # Restored afterwards: an example wraps them.
    monkeypatch.setattr(DataLoaderClass, "get_next_batch", DataLoaderClass.get_next_batch)
    monkeypatch.setattr(ModelClass, "forward", ModelClass.forward)
    notified: list[Any] = []
    reports: list[Any] = []
    values: dict[str, Any] = {
        "DataLoaderClass": DataLoaderClass,
        "ModelClass": ModelClass,
        "STRAGGLER_REPORT_INTERVAL": 10,
        "data_loader": DataLoaderClass(),
        "handle_report": reports.append,
        "maybe_notify_user": notified.append,
        "model": ModelClass(),
        "more": {},
        "num_iters": 21,
        "rank": 0,
        "work": lambda: None,
    }
    for snippet in (documents.SECTIONS, documents.CALLABLES):
        exec(documents.filled_in(snippet), values)
    assert len(notified) == 2 * 3
    assert isinstance(values["report"], straggler.Report)
    assert values["straggler"].__name__ == f"{NAME}.straggler"
    values["more"] = {"scores_to_compute": "all"}
    exec(documents.filled_in(documents.INTERVAL), values)
    assert reports == []  # 300 seconds
    exec(documents.filled_in(documents.INTERVAL).replace("=300", "=1e-9"), values)
    assert len(reports) >= 1 and isinstance(reports[0], straggler.Report)
    exec(documents.filled_in(documents.WITHOUT_COLLECTIVES), values)
    try:
        assert straggler.Detector.generate_report() is not None
    finally:
        straggler.Detector.shutdown()


@pytest.mark.slow
def test_lightning(spawn: Spawner, python: str, tmp_path: Path) -> None:
    launcher = [python, "-m", f"{NAME}.fault_tolerance.launcher", "--nproc-per-node=1"]
    flag = tmp_path / "finished"
    job = spawn(
        [*launcher, str(PROGRAM), str(tmp_path)],
        env={"FAULT_TOL_FINISHED_FLAG_FILE": str(flag), "OMP_NUM_THREADS": "1"},
    )
    assert job.wait(120) == 0, job.output()[-3000:]
    ended = re.findall(r"ENDED\|(\d)\|(\d)\|\[(.*)\]", job.out())
    assert ended == [
        ("0", "3", "'holdfast.ptl_resiliency.callbacks.FaultToleranceCallback'"),
        ("1", "3", "'holdfast.ptl_resiliency.callbacks.StragglerDetectionCallback'"),
    ]
    assert flag.exists()


# -- the faults that Megatron-LM injects by name happen, after their delay, to the process that dispatched them


HAPPENS = """
import os, signal, sys, time
from nvidia_resiliency_ext.shared_utils.inject_fault import Fault, dispatch_fault_injection

fault = Fault(int(float(Fault[sys.argv[1]].value)))  # as it travels between ranks
print("armed ", end="", flush=True)
try:
    dispatch_fault_injection(fault=fault, delay=0.05, callback=lambda: os.write(1, b"called"))
    end = time.monotonic() + 60
    while time.monotonic() < end:
        time.sleep(0.01)
except BaseException as error:
    print(f" {type(error).__name__}")
    sys.exit(7)
"""

ENDS = {
    "ASYNC_EXC": (7, "armed called InjectedFault\n"),
    "OS_ABORT": (-signal.SIGABRT, "armed called"),
    "SEGFAULT": (-signal.SIGSEGV, "armed called"),
    "SIGINT": (7, "armed called KeyboardInterrupt\n"),
    "SIGKILL": (-signal.SIGKILL, "armed called"),
    "SIGNAL_EXC": (7, "armed called InjectedFault\n"),
    "SIGTERM": (-signal.SIGTERM, "armed called"),
}


def test_what_each_does(spawn: Spawner, python: str) -> None:
    for name, (code, said) in ENDS.items():
        run = spawn([python, "-c", HAPPENS, name])
        assert run.wait() == code, (name, run.output())
        assert run.out() == said, name
        assert "[holdfast.testing] rank 0" in run.err() and "happens now" in run.err()


def test_those_that_stay(spawn: Spawner, python: str) -> None:
    import psutil

    stopped = spawn([python, "-c", HAPPENS, "SIGSTOP"])
    stopped.wait_for(lambda: psutil.Process(stopped.pid).status() == psutil.STATUS_STOPPED)
    locked = spawn([python, "-c", HAPPENS, "LOCK_GIL"])
    locked.wait_for("called")
    locked.send_signal(signal.SIGINT)  # its handler is Python's, and gets no turn
    before = psutil.Process(locked.pid).cpu_times().user
    locked.wait_for(lambda: psutil.Process(locked.pid).cpu_times().user > before + 0.2)
    assert locked.returncode is None and locked.out() == "armed called"


@pytest.fixture
def faults(alias: None) -> Any:
    return importlib.import_module(f"{NAME}.shared_utils.inject_fault")


def test_the_exception_of_the_workload_waits_to_be_asked(faults: Any) -> None:
    faults.maybe_raise_workload_exception()
    for forget in (False, True):
        happened = threading.Event()
        before = set(threading.enumerate())
        faults.dispatch_fault_injection(faults.Fault.WORKLOAD_EXC, 0.0, happened.set)
        for thread in set(threading.enumerate()) - before:
            thread.join(60)
        assert happened.is_set()
        if forget:
            faults.clear_workload_exception()
        else:
            with pytest.raises(InjectedFault, match="WORKLOAD_EXC"):
                faults.maybe_raise_workload_exception()
        faults.maybe_raise_workload_exception()


def test_one_s_own_handlers(faults: Any) -> None:
    seen: list[tuple[float, Any]] = []
    fault = faults.register_fault("SIGKILL", lambda delay, callback: seen.append((delay, callback)))
    assert fault is faults.Fault.SIGKILL
    mine = faults.register_fault("FIRE", lambda delay, callback: seen.append((delay, callback)))
    faults.dispatch_fault_injection(fault, 1.0)
    faults.dispatch_fault_injection(mine, 2.0, print)
    faults.dispatch_fault_injection("SIGKILL", 3.0)
    assert seen == [(1.0, None), (2.0, print), (3.0, None)]
    with pytest.raises(RuntimeError, match="unknown fault 'WATER'; known: GPU_ERROR, "):
        faults.dispatch_fault_injection("WATER", 0.0)


def test_a_fault_of_the_gpu_needs_one(faults: Any) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU, and this process needs it")
    with pytest.raises(RuntimeError, match="GPU_SLEEP needs a GPU, and there is none"):
        faults.dispatch_fault_injection(faults.Fault.GPU_SLEEP, 0.0)


def test_the_names_of_the_original(faults: Any) -> None:
    names = "GPU_ERROR GPU_SLEEP WORKLOAD_EXC ASYNC_EXC SIGNAL_EXC OS_ABORT LOCK_GIL SEGFAULT SIGINT SIGKILL SIGTERM"
    assert [fault.name for fault in faults.Fault] == [*names.split(), "SIGSTOP"]
    assert set(faults.__all__) <= set(dir(faults))
