"""The environment of a rank: what torchrun sets, the differences that are meant, and a prologue that comes first."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.conftest import SOURCE
from tests.launcher.conftest import Jobs, run_twins
from tests.processes import Spawner

DUMP = """
import json
os.write(1, (json.dumps({"rank": RANK, **os.environ}) + "\\n").encode())
"""

ADDED = {"FT_RANK_MONITOR_IPC_SOCKET", "HOLDFAST_CONFIG", "HOLDFAST_RUN_DIR"}
"""Where the rank finds its board, the settings for `client.cfg`, and where it writes its straggler reports."""

OTHER = {
    "MASTER_ADDR": "torchrun's is the host's name; the store of a one-node job listens on loopback only",
    "MASTER_PORT": "each cycle has a store of its own, on a port that the kernel chose",
    "TORCHELASTIC_RUN_ID": "both draw one; torchrun draws one even when --rdzv-id gives it",
    "TORCHELASTIC_ERROR_FILE": "below the launcher's own directory, not in the shared temporary one",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGUSR1 and SIGUSR2 are passed on too",
    "TORCH_FR_BUFFER_SIZE": "torch's flight recorder is on, for incidents; the value is recent torch's own default",
}

PACKAGE = "holdfast.fault_tolerance.launcher"
TEST_KIT = {"NOTES", "TMPDIR"}


def differences(jobs: Jobs, *arguments: str | Path, env: dict[str, str | None] | None = None) -> set[str]:
    """Names of variables that differ or are missing on one side, on any rank."""
    ours, theirs = run_twins(jobs, *arguments, jobs.script(DUMP), env=env).reports()
    assert ours.keys() == theirs.keys()
    names = set()
    for rank, variables in ours.items():
        both = variables.keys() | theirs[rank].keys()
        names |= {name for name in both if variables.get(name) != theirs[rank].get(name)}
    return names - TEST_KIT


def test_only_the_meant_differences(jobs: Jobs) -> None:
    assert differences(jobs, "--nproc-per-node", "2", "--max-restarts", "3") == ADDED | set(OTHER)


def test_what_the_user_set_arrives(jobs: Jobs) -> None:
    names = (
        "OMP_NUM_THREADS",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "TORCH_CPP_LOG_LEVEL",
        "TORCH_FR_BUFFER_SIZE",
    )
    flags = ("--role", "trainer", "--rdzv-id", "job-7", "--signals-to-handle", "SIGTERM,SIGINT")
    found = differences(jobs, "--nproc-per-node", "2", *flags, env=dict.fromkeys(names, "3"))
    assert found == ADDED | set(OTHER) - {"TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCH_FR_BUFFER_SIZE"}


def test_no_python_path_is_added(jobs: Jobs, spawn: Spawner) -> None:
    """Holdfast is installed as everywhere else: nothing on PYTHONPATH, for the launcher or for its ranks."""
    start = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); from {PACKAGE} import main; main.console()"
    script = jobs.script("say('python path', os.environ.get('PYTHONPATH'))")
    done = spawn([sys.executable, "-c", start, script], env={"PYTHONPATH": None})
    assert done.wait() == 0
    assert done.out() == "rank 0 cycle 0 python path None\n"


def test_the_run_directory_is_told_in_each_cycle(jobs: Jobs) -> None:
    """Where this job's journal is, also beside another job that has the directory."""
    text = "say('in', os.environ['HOLDFAST_RUN_DIR'], os.environ['TORCHELASTIC_RUN_ID'])\n"
    first = jobs(
        text + "if CYCLE == 0: sys.exit(1)\nwait()", "--max-restarts", "1", "--rdzv-id", "job-7", nproc=1
    )
    assert first.hear(r"in (\S+) job-7", ranks=[0], cycle=1) == {0: str(first.run_dir)}
    says = jobs.script("say('in', os.environ['HOLDFAST_RUN_DIR'])")
    second = jobs.plain("--ft-run-dir", first.run_dir, "--nproc-per-node", "1", says)
    second.end(0)
    assert second.hear(r"in (\S+)", ranks=[0]) == {0: f"{first.run_dir}/also-{second.pid}"}


LATE_THREAD = """
import threading, types
sys.modules.setdefault("torch", types.ModuleType("torch"))
go = threading.Event()

def finish():
    go.wait()
    until = time.monotonic() + 0.05
    while time.monotonic() < until:
        pass
    say("finished")

threading.Thread(target=finish, daemon=True).start()
go.set()
"""


def test_threads_may_finish_before_python_ends(jobs: Jobs) -> None:
    """As torch's that end a collective: those would abort the process when Python has no time for them any more."""
    job = jobs(LATE_THREAD, nproc=1)
    job.end(0)
    assert job.lines("finished")


# -- a sitecustomize before PYTHONPATH -----------------------------------------------------------------------

LAUNCHES = "from holdfast.fault_tolerance.launcher.main import console; console()"


def test_with_it_ranks_start_cold(jobs: Jobs, spawn: Spawner, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").touch()
    # As a .pth file would, in the launcher: the ranks of this test have no such file.
    start = f"import sys; sys.path.insert(1, {str(site)!r}); {LAUNCHES}"
    script = jobs.script("say('runs')")
    spawned = spawn(
        [
            sys.executable,
            "-c",
            start,
            "--ft-run-dir",
            str(tmp_path / "run"),
            "--nproc-per-node=2",
            str(script),
        ]
    )
    assert spawned.wait() == 0
    (journal,) = (tmp_path / "run").glob("journal-*.jsonl")
    assert "takes a sitecustomize from" in journal.read_text()
    assert '"start": "warm"' not in journal.read_text()


def test_a_broken_sitecustomize_never_lets_a_zygote_run_the_script(jobs: Jobs, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("raise RuntimeError('a broken site')\n")
    script = tmp_path / "train.py"
    script.write_text("import os\nos.write(1, f'{os.environ.get(\"RANK\")} runs\\n'.encode())\n")
    paths = (
        ":".join([str(site), *os.environ["PYTHONPATH"].split(":")])
        if "PYTHONPATH" in os.environ
        else str(site)
    )
    job = jobs.command(
        "--nproc-per-node", "2", "--ft-warm-start", "on", str(script), env={"PYTHONPATH": paths}
    )
    said = job.end(0)
    assert sorted(job.lines("runs")) == ["0 runs", "1 runs"]
    assert "warm start: its zygote" in said and "Ranks start cold" in said
