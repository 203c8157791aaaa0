"""State files, YAML and pickles go from one implementation to the other: NVRx 0.4.1 runs here, in its own environment.

`make nvrx` makes that environment. Where there is none the test skips, unless HOLDFAST_REQUIRE_NVRX=1, as in CI.
"""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest

from benchmarks import environments
from holdfast.fault_tolerance import (
    FaultToleranceConfig,
    HeartbeatTimeouts,
    RankMonitorClient,
    SectionTimeouts,
    WorkloadAction,
    WorkloadControlRequest,
)
from tests.client.conftest import NO_FLOORS, board, client, shm  # noqa: F401
from tests.compat.conftest import NAME
from tests.processes import Spawner

PROGRAM = Path(__file__).parent / "programs" / "exchanges_state.py"
REQUIRED = "HOLDFAST_REQUIRE_NVRX"
CONFIG = FaultToleranceConfig(
    initial_rank_heartbeat_timeout=71.0,
    rank_heartbeat_timeout=None,
    rank_section_timeouts={"setup": 600.0, "step": 180.0, "checkpointing": 420.0},
    rank_out_of_section_timeout=300.0,
    safety_factor=4.0,
)


@pytest.fixture
def config() -> FaultToleranceConfig:
    """That of our rank."""
    return CONFIG


@pytest.fixture
def original() -> list[str]:
    """The command of its launcher."""
    if not environments.has_nvrx():
        reason = f"NVRx {environments.VERSION} is not installed in its environment (make nvrx)"
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(f"{REQUIRED}=1, but {reason}")
        pytest.skip(reason)
    launcher = environments.nvrx()
    assert launcher
    return launcher


@pytest.mark.slow
@pytest.mark.usefixtures("alias")
def test_there_and_back(
    original: list[str],
    client: RankMonitorClient,  # noqa: F811
    spawn: Spawner,
    tmp_path: Path,
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    client.send_heartbeat()
    for name in ("setup", "step"):
        client.start_section(name)
        client.end_section(name)
    client.send_heartbeat()
    client.calculate_and_set_hb_timeouts()
    client.calculate_and_set_section_timeouts(selected_sections=["setup", "step"])
    (ours / "state.json").write_text(json.dumps(client.state_dict()))
    CONFIG.to_yaml_file(ours / "ft.yml")

    words = ["--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    job = spawn(
        [
            *original,
            *words,
            f"--log-dir={tmp_path}",
            f"--fault-tol-cfg-path={ours / 'ft.yml'}",
            PROGRAM,
            ours,
            theirs,
        ],
        env={"PYTHONPATH": None, "OMP_NUM_THREADS": "1"},
    )
    assert job.wait(120) == 0, job.output()[-3000:]
    told = json.loads((theirs / "told.json").read_text())
    assert told["from"] == f"{NAME}.fault_tolerance.rank_monitor_client"

    # The original has read ours: our state, our YAML by its launcher, and all of our keys.
    written = client.state_dict()["current_timeouts"]
    assert told["heartbeat"] == list(written["heartbeat"].values())
    assert told["section"] == list(written["section"].values())[:3]
    assert told["by the launcher"] == told["by the file"] == [dict(CONFIG.rank_section_timeouts), 71.0]
    assert told["the rest"] == [None, 300.0, 4.0]

    # And we read the original's.
    state = json.loads((theirs / "state.json").read_text())
    assert state["current_timeouts"].keys() == written.keys()
    assert all(state["current_timeouts"][part].keys() == written[part].keys() for part in written)
    again = RankMonitorClient(learned_floors=NO_FLOORS)
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert FaultToleranceConfig.from_yaml_file(theirs / "ft.yml", ignore_not_recognized=False) == CONFIG

    request, heartbeat, section = pickle.loads((theirs / "objects.pickle").read_bytes())
    assert request == WorkloadControlRequest(WorkloadAction.ExcludeThisNode, "a fan is loud")
    assert heartbeat == HeartbeatTimeouts(1.0, 2.0, True)
    assert section == SectionTimeouts({"step": 3.0}, 4.0, {"step"}, True)
