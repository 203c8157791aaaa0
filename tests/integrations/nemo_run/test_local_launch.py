"""NeMo-Run's own FaultTolerance launcher starts `ft_launcher` of this package, on this machine and without Slurm.

Owns the promise to those who change nothing: no plugin of ours, and the training imports `nvidia_resiliency_ext`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.compat.conftest import linked, python  # noqa: F401
from tests.processes import Spawner

TRAINING = Path(__file__).parents[2] / "compat" / "programs" / "shows_settings.py"

DRIVER = """
import sys
import nemo_run as run
from nemo_run.config import set_nemorun_home

set_nemorun_home(sys.argv[1])
launcher = run.FaultTolerance(
    max_restarts=2, initial_rank_heartbeat_timeout=61, rank_heartbeat_timeout=31,
    workload_check_interval=1, rank_termination_signal="SIGTERM", log_level="DEBUG", rdzv_port=0,
)
with run.Experiment("local", executor=run.LocalExecutor(ntasks_per_node=2, launcher=launcher)) as experiment:
    experiment.add(run.Script(path=sys.argv[2], args=[sys.argv[1]], entrypoint="python"), name="train")
    experiment.run(detach=False, tail_logs=True)
"""


@pytest.mark.slow
def test_a_local_run_restarts_and_gets_its_limits(
    spawn: Spawner,
    tmp_path: Path,
    python: str,  # noqa: F811
) -> None:
    tools = Path(python).parent  # `ft_launcher` is the command of this environment
    run = spawn(
        [python, "-c", DRIVER, tmp_path, TRAINING],
        env={"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"},
    )
    assert run.wait(120) == 0, run.output()[-4000:]
    told = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("?-?.json")}
    assert told.keys() >= {"1-0", "0-1", "1-1"}, run.output()[-4000:]
    for module, settings, *_ in told.values():
        assert module == "holdfast.fault_tolerance.client"
        assert (settings["initial_rank_heartbeat_timeout"], settings["rank_heartbeat_timeout"]) == (
            61.0,
            31.0,
        )
        assert settings["workload_check_interval"] == 1.0
        assert (settings["rank_termination_signal"], settings["log_level"]) == ("SIGTERM", "DEBUG")
    assert "[holdfast]" in run.output()
