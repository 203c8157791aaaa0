"""Modules that are not fit to be forked: each works in ranks that start warm, or is refused by name.

The modules are in `modules.txt`, installed for the test; each has a `check` that fails where it does not behave as in a
process of its own. Whatever the verdict, the ranks start warm.
Does not cover: Lightning (`test_telltale`), CUDA, and what is not among this project's own requirements.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.launcher.warm.conftest import WARM, Installation
from tests.launcher.warm.users import MODULES, OF_LIBRARIES, VERDICTS, check_verdicts, use
from tests.processes import Spawner
from tests.straggler.kernels.conftest import NATIVE

COMPANY = (
    "reads_arguments",
    "works_at_exit",
    "prints",
    "warns",
    "sets_a_variable",
    "is_broken",
    "raises_at_forks",
    "chooses_a_start_method",
    "makes_a_folder",
    "changes_the_interpreter",
)


def test_modules_that_work(spawn: Spawner, installation: Installation, tmp_path: Path) -> None:
    """What they say at import and at exit is said once by each rank, and by no other process."""
    names = list(COMPANY)
    job = use(spawn, installation, tmp_path, WARM, names)
    assert job.lines("works_at_exit$") == job.lines(r"^rank (1 cycle 0|[01] cycle 1) works_at_exit$")
    assert len(job.lines("works_at_exit$")) == 3  # rank 0 was killed in cycle 0
    assert len(job.lines("^prints: imported$")) == 4
    assert len(re.findall("^prints: imported$", job.spawned.err(), re.MULTILINE)) == 4
    assert "Exception ignored" not in job.spawned.output()  # what Python says of handlers that raise at forks
    assert len(list((tmp_path / "temporary").iterdir())) == 1, "only that of the rank that was killed is left"
    check_verdicts(job, names)


UNFIT = tuple(name for name in VERDICTS if name not in (*COMPANY, *OF_LIBRARIES))


@pytest.mark.slow
def test_modules_that_do_not(spawn: Spawner, installation: Installation, tmp_path: Path) -> None:
    """They are named once each, ranks import them by themselves, and what else there is stays warm."""
    names = _that_can_be_had(installation, tmp_path, UNFIT)
    job = use(spawn, installation, tmp_path, WARM, names)
    check_verdicts(job, names)


def _that_can_be_had(installation: Installation, folder: Path, names: Sequence[str]) -> list[str]:
    """Without those that need what this machine lacks."""
    missing = set()
    installation.link("grpc", "typing_extensions")
    if not (installation.packages / "grpc").exists():
        missing.add("opens_a_channel")
    compiler = shutil.which("cc")
    if compiler:
        line = [compiler, "-shared", "-fPIC", "-o", folder / "libcuda.so.1", NATIVE / "fake_cuda.c"]
        subprocess.run(line, check=True)
    else:
        missing |= {"loads_cuda", "initialises_cuda"}
    return [name for name in names if name not in missing]


def test_modules_that_were_learned(spawn: Spawner, installation: Installation, tmp_path: Path) -> None:
    """No option names them: the first job has learned what its script imports, and the second what not to import."""
    names, told = ["works_at_exit", "starts_a_thread"], []
    for number in range(3):
        folder = tmp_path / f"job{number}"
        folder.mkdir()
        kept = ("--ft-run-dir", tmp_path / "kept")
        job = use(spawn, installation, folder, WARM, names, preload=False, flags=kept)
        told.append(len([line for line in job.said() if "starts_a_thread" in line]))
        if number:
            assert len(job.lines("^rank . cycle . works_at_exit is fine ahead$")) == 4
            assert len(job.lines("^rank . cycle . starts_a_thread is fine here$")) == 4
    assert told == [0, 1, 0]


def test_every_module_has_its_test() -> None:
    """None of them is forgotten, and each that is installed has a verdict."""
    assert {*COMPANY, *OF_LIBRARIES} < set(VERDICTS) == set(MODULES)


# -- libraries whose import leaves threads, seeds or folders -------------------------------------------------


@pytest.mark.slow
def test_libraries(spawn: Spawner, installation: Installation, tmp_path: Path) -> None:
    """With two threads for each rank: OpenBLAS's go before a fork and come back, OpenMP's would hang the ranks.

    wandb's temporary folders are each rank's own, and only a rank that is killed leaves them behind.
    """
    installation.link_all()
    names = [name for name in OF_LIBRARIES if name != "uses_wandb" or _has_wandb()]
    job = use(spawn, installation, tmp_path, WARM, names, env={"OMP_NUM_THREADS": "2"})
    if _has_wandb():
        left = [path for path in (tmp_path / "temporary").iterdir() if "wandb" in path.name]
        assert len(left) == 2, "only those of the rank that was killed are left"
    check_verdicts(job, names)


def _has_wandb() -> bool:
    """Without importing it, which would leave its folders here, too."""
    return importlib.util.find_spec("wandb") is not None
