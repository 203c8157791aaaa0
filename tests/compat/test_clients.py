"""What clients do with the names: the calls of Megatron-LM and Megatron-Bridge, and a real client's question."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from holdfast.fault_tolerance.board import Board
from tests.client.conftest import board, config, shm  # noqa: F401
from tests.compat.conftest import NAME
from tests.processes import Spawner


@pytest.mark.usefixtures("alias")
def test_the_hooks_of_megatron(board: Board) -> None:  # noqa: F811
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
