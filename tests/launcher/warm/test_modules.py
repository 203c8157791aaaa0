"""Modules that are not fit to be forked: each works in ranks that start warm, or is refused by name.

The modules are in `modules`, installed for the test; each has a `check` that fails where it does not behave as in a
process of its own. `VERDICTS` says which are refused. Whatever the verdict, the ranks start warm.
Does not cover: wandb, and pools of threads (`test_libraries`).
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import SOURCE
from tests.launcher.conftest import Job
from tests.launcher.warm.conftest import COLD, HERE, WARM, Installation, must_be_warm, run
from tests.processes import Spawner

WORKS, REFUSED, EITHER = "works warm", "refused by name", "works warm or is refused by name"

VERDICTS = {
    "reads_arguments": EITHER,  # under `-m`, Python's start has not yet put the module's path there
    "works_at_exit": WORKS,
    "prints": WORKS,
    "warns": EITHER,
    "sets_a_variable": WORKS,
    "is_broken": WORKS,  # it is the ranks whom its error concerns
    "raises_at_forks": EITHER,
    "chooses_a_start_method": REFUSED,
    "makes_a_folder": EITHER,
    "starts_a_thread": REFUSED,
    "starts_a_native_thread": REFUSED,
    "opens_a_socket": REFUSED,
    "opens_a_channel": REFUSED,
    "opens_files": REFUSED,
    "loads_cuda": REFUSED,
    "asks_for_the_rank": REFUSED,
    "copies_the_environment": REFUSED,
    "handles_signals": REFUSED,
    "starts_a_process": REFUSED,
    "sets_a_timer": REFUSED,
    "hangs_forked_children": REFUSED,
    "hangs_at_forks": REFUSED,
    "changes_the_folder": REFUSED,
    "changes_limits": REFUSED,
    "changes_the_locale": REFUSED,
    "seeds_random_numbers": REFUSED,
    "wraps_standard_output": REFUSED,
}

PLACES = [(cycle, rank) for cycle in (0, 1) for rank in (0, 1)]


def use(spawn: Spawner, installation: Installation, folder: Path, mode: str, names: Sequence[str]) -> Job:
    """A job whose script uses these modules, which are named to the launcher, too. It checks what always holds."""
    shutil.copytree(HERE / "modules", installation.packages, dirs_exist_ok=True)
    shutil.copytree(HERE / "programs", folder, dirs_exist_ok=True)
    (folder / "temporary").mkdir()
    variables = {
        "PYTHONPATH": None,
        "TMPDIR": str(folder / "temporary"),
        "STARTED_IN": str(folder),
        "REMOVED_BY_A_MODULE": "not yet",
        "CUDA_HERE": str(folder / "libcuda.so.1"),
    }
    words = ("--ft-preload", ",".join(names), "-m", "user", *names)
    job = run(spawn, folder, mode, *words, env=variables, launcher=installation.launcher(SOURCE))
    assert job.lines("FAULT") == []
    for cycle, rank in PLACES:
        for name in names:
            expected = "ends with is_broken: not here" if name == "is_broken" else "is fine (ahead|here)"
            assert len(job.lines(f"^rank {rank} cycle {cycle} {name} {expected}$")) == 1, name
    return job


def check_verdicts(job: Job, names: Sequence[str]) -> None:
    """Each has its verdict, and the job has not lost its warm start over it."""
    must_be_warm(job, cycles=[1])
    for name in names:
        told = [line for line in job.said() if re.search(rf"\b{name}\b", line)]
        ahead = {line.rpartition(" ")[2] for line in job.lines(rf"^rank \d cycle 1 {name} is fine")}
        found = (REFUSED if told else WORKS), len(told), ahead or {"here"}
        right = {WORKS: (WORKS, 0, {"ahead"}), REFUSED: (REFUSED, 1, {"here"})}
        if name == "is_broken":
            right[WORKS] = (WORKS, 0, {"here"})
        allowed = list(right.values()) if VERDICTS[name] == EITHER else [right[VERDICTS[name]]]
        assert found in allowed, f"{name}: {VERDICTS[name]}\n{job.spawned.err()}"


def test_modules_that_work(spawn: Spawner, installation: Installation, tmp_path: Path) -> None:
    """What they say at import and at exit is said once by each rank, and by nobody else."""
    names = list(VERDICTS)[:9]
    job = use(spawn, installation, tmp_path, WARM, names)
    assert job.lines("works_at_exit$") == job.lines(r"^rank (1 cycle 0|[01] cycle 1) works_at_exit$")
    assert len(job.lines("works_at_exit$")) == 3  # rank 0 was killed in cycle 0
    assert len(job.lines("^prints: imported$")) == 4
    assert len(re.findall("^prints: imported$", job.spawned.err(), re.MULTILINE)) == 4
    assert "this module is not made for forks" not in job.spawned.output()
    assert len(list((tmp_path / "temporary").iterdir())) == 1, "only that of the rank that was killed is left"
    check_verdicts(job, names)


GROUPS = {
    "what they start or open": [
        *("starts_a_thread", "starts_a_native_thread", "opens_a_socket", "opens_a_channel", "opens_files"),
        *("starts_a_process", "sets_a_timer", "loads_cuda"),
    ],
    "what they keep or change": [
        *(
            "asks_for_the_rank",
            "copies_the_environment",
            "handles_signals",
            "changes_the_folder",
            "changes_limits",
        ),
        *("changes_the_locale", "seeds_random_numbers", "wraps_standard_output", "hangs_forked_children"),
        "hangs_at_forks",
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("names", GROUPS.values(), ids=GROUPS)
def test_modules_that_do_not(
    spawn: Spawner, installation: Installation, tmp_path: Path, names: Sequence[str]
) -> None:
    """They are named once each, ranks import them by themselves, and what else there is stays warm."""
    names = _that_can_be_had(installation, tmp_path, names)
    job = use(spawn, installation, tmp_path, WARM, names)
    check_verdicts(job, names)


def _that_can_be_had(installation: Installation, folder: Path, names: Sequence[str]) -> list[str]:
    """Without those that need what this machine lacks."""
    missing = set()
    installation.link("grpc", "typing_extensions")
    if not (installation.packages / "grpc").exists():
        missing.add("opens_a_channel")
    source = folder / "cuda.c"
    source.write_text("int cuInit(unsigned flags) { return (int) flags; }\n")
    compiler = shutil.which("cc")
    if compiler:
        subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libcuda.so.1", source], check=True)
    else:
        missing.add("loads_cuda")
    return [name for name in names if name not in missing]


def test_every_module_has_its_test() -> None:
    """None of them is forgotten, and each that is installed has a verdict."""
    used = {*list(VERDICTS)[:9], *(name for names in GROUPS.values() for name in names)}
    assert used == set(VERDICTS)
    assert used <= {path.stem for path in (HERE / "modules").glob("*.py")}


@pytest.mark.soak
@pytest.mark.parametrize("name", VERDICTS)
def test_a_module_alone(spawn: Spawner, installation: Installation, tmp_path: Path, name: str) -> None:
    """Cold and warm, without the company of others."""
    if name not in _that_can_be_had(installation, tmp_path, [name]):
        pytest.skip(f"what {name} needs is not here")
    for mode in (COLD, WARM):
        folder = tmp_path / f"job-{mode}"
        folder.mkdir()
        for library in tmp_path.glob("libcuda.so.1"):
            shutil.copy(library, folder)
        job = use(spawn, installation, folder, mode, [name])
    check_verdicts(job, [name])
