"""`python -m nvidia_resiliency_ext.fault_tolerance.launcher` is `ft_launcher`; files go to the original and back."""

from __future__ import annotations

import importlib
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
from tests.clients import NO_FLOORS
from tests.compat.conftest import NAME
from tests.processes import Spawned, Spawner

PROGRAM = Path(__file__).parent / "programs" / "shows_settings.py"
ROOT = Path(__file__).resolve().parents[2]

MODULES = {"alias": f"{NAME}.fault_tolerance.launcher", "own": "holdfast.fault_tolerance.launcher"}

# Each field in another spelling: the oldest (NeMo-Run, the documents), the newer ones, hyphens and underscores.
SPELLINGS = [
    "--ft-param-rank_section_timeouts=setup:600,step:180,checkpointing:420",
    "--ft-param-rank_out_of_section_timeout=300",
    "--ft-param-workload-check-interval=1",
    "--ft_param_safety_factor=4",
    "--ft-rank-heartbeat-timeout=null",
    "--ft-rank_termination_signal=SIGTERM",
    "--ft_log_level=DBG",
    "--ignore-missing-fault-tol-cfg",
]
GIVEN = {
    "rank_section_timeouts": {"setup": 600.0, "step": 180.0, "checkpointing": 420.0},
    "rank_out_of_section_timeout": 300.0,
    "workload_check_interval": 1.0,
    "safety_factor": 4.0,
    "rank_heartbeat_timeout": None,
    "node_health_check_interval": 7.0,
    "initial_rank_heartbeat_timeout": 71.0,
}
"""The last but one from the file, the last from the environment."""


def start(
    spawn: Spawner, python: str, module: str, folder: Path, environment: dict[str, str | None], *options: str
) -> Spawned:
    """One rank with all of these."""
    words = [
        "--rdzv_backend=c10d",
        "--rdzv_endpoint=127.0.0.1:0",
        "--nnodes=1",
        "--nproc-per-node=1",
        *SPELLINGS,
    ]
    return spawn(
        [
            python,
            "-m",
            MODULES[module],
            *words,
            *options,
            PROGRAM,
            folder,
            "--ft-param-of=the script",
        ],
        env={
            "PET_FT_INITIAL_RANK_HEARTBEAT_TIMEOUT": "71",
            "FAULT_TOL_FINISHED_FLAG_FILE": str(folder / "finished"),
            "OMP_NUM_THREADS": "1",
            **environment,
        },
    )


@pytest.mark.slow
def test_every_age_s_spellings_under_both_names(spawn: Spawner, python: str, tmp_path: Path) -> None:
    config = tmp_path / "ft.yml"
    config.write_text("job:\n  fault_tolerance:\n    node_health_check_interval: 7\n    safety_factor: 9\n")
    # The file by its oldest flag and by the environment.
    ways = {
        "alias": (f"--fault-tol-cfg-path={config}", {}),
        "own": ("--ft-ignore-missing-cfg", {"FAULT_TOL_CFG_PATH": str(config)}),
    }
    jobs = {}
    for name, (option, more) in ways.items():
        (tmp_path / name).mkdir()
        jobs[name] = start(spawn, python, name, tmp_path / name, more, option)
    told = {}
    for name, job in jobs.items():
        assert job.wait() == 0, job.output()
        _, settings, environment, arguments = json.loads((tmp_path / name / "0-0.json").read_text())
        assert environment.pop("FAULT_TOL_FINISHED_FLAG_FILE") == str(tmp_path / name / "finished")
        told[name] = (settings, environment)
        assert arguments == ["--ft-param-of=the script"]
    assert told["alias"] == told["own"]
    settings, environment = told["alias"]
    assert {key: settings[key] for key in GIVEN} == GIVEN
    assert (settings["rank_termination_signal"], settings["log_level"]) == ("SIGTERM", "DEBUG")
    assert environment == {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RESTART_COUNT": "0"}


def test_mistakes_are_alike(spawn: Spawner, python: str) -> None:
    words = ["--ft-rank-heartbeat-timeout=-1", "x.py"]
    jobs = [spawn([python, "-m", module, *words]) for module in MODULES.values()]
    assert [job.wait() for job in jobs] == [2, 2]
    assert jobs[0].output() == jobs[1].output()
    assert "ft_launcher: error: --ft-rank-heartbeat-timeout" in jobs[0].err()


@pytest.mark.usefixtures("alias")
def test_as_a_function(capsys: pytest.CaptureFixture[str]) -> None:
    launcher = importlib.import_module(f"{NAME}.fault_tolerance.launcher")
    with pytest.raises(SystemExit) as stop:
        launcher.main(["--ft-cfg-path=/no/such/file", "x.py"])
    assert stop.value.code == 2
    assert "/no/such/file" in capsys.readouterr().err


@pytest.mark.usefixtures("alias")
def test_parser_and_config_agree() -> None:
    """As tests of NVRx's releases use the two."""
    launcher = importlib.import_module(f"{NAME}.fault_tolerance.launcher")
    config = importlib.import_module(f"{NAME}.fault_tolerance.config").FaultToleranceConfig
    assert {"main", "get_args_parser"} <= set(dir(launcher))
    args = launcher.get_args_parser().parse_args(["--ft-param-rank_heartbeat_timeout=60", "x.py"])
    assert config.from_args(args).rank_heartbeat_timeout == 60.0


# -- state files, YAML and pickles go from one implementation to the other


EXCHANGES = Path(__file__).parent / "programs" / "exchanges_state.py"
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
    client: RankMonitorClient,
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
            EXCHANGES,
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
