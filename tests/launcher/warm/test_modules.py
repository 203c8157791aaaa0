"""Modules that are not fit to be forked: each works in ranks that start warm, or is refused by name."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import SOURCE
from tests.jobs import Job
from tests.launcher.warm.conftest import HERE, WARM, Installation, must_be_warm, run
from tests.processes import Spawner
from tests.straggler.kernels.conftest import NATIVE

WORKS, REFUSED, EITHER = "works warm", "refused by name", "works warm or is refused by name"
COMPANY, UNFIT, LIBRARY = "company", "unfit", "library"


class Module(NamedTuple):
    group: str
    verdict: str
    source: str


def modules() -> Iterator[tuple[str, Module]]:
    for text in (HERE / "modules.txt").read_text().split("\n== ")[1:]:
        title, _, source = text.partition("\n")
        name, group, verdict = title.split(", ")
        yield name, Module(group, verdict, source)


MODULES = dict(modules())


def names_of(group: str) -> list[str]:
    return [name for name, module in MODULES.items() if module.group == group]


PLACES = [(cycle, rank) for cycle in (0, 1) for rank in (0, 1)]


def use(
    spawn: Spawner,
    installation: Installation,
    folder: Path,
    mode: str,
    names: Sequence[str],
    env: Mapping[str, str | None] | None = None,
    preload: bool = True,
    flags: Sequence[str | Path] = (),
) -> Job:
    """A job whose script uses these modules; with `preload` the launcher gets their names. Checks what always holds."""
    for name, module in MODULES.items():
        (installation.packages / f"{name}.py").write_text(module.source)
    shutil.copytree(HERE / "programs", folder, dirs_exist_ok=True)
    (folder / "temporary").mkdir()
    variables = {
        "PYTHONPATH": None,
        "TMPDIR": str(folder / "temporary"),
        "STARTED_IN": str(folder),
        "REMOVED_BY_A_MODULE": "not yet",
        "CUDA_HERE": str(folder / "libcuda.so.1"),
        **(env or {}),
    }
    ahead = ("--ft-preload", ",".join(names)) if preload else ()
    words = (*flags, *ahead, "-m", "user", *names)
    job = run(spawn, folder, mode, *words, env=variables, launcher=installation.launcher(SOURCE))
    faults = job.lines("FAULT")
    assert not faults, "\n".join(faults)
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
        told = [line for line in told if f"--ft-preload {name}: it cannot be imported" not in line]
        ahead = {line.rpartition(" ")[2] for line in job.lines(rf"^rank \d cycle 1 {name} is fine")}
        found = (REFUSED if told else WORKS), len(told), ahead or {"here"}
        right = {WORKS: (WORKS, 0, {"ahead"}), REFUSED: (REFUSED, 1, {"here"})}
        if name == "is_broken":
            right[WORKS] = (WORKS, 0, {"here"})
        verdict = MODULES[name].verdict
        allowed = list(right.values()) if verdict == EITHER else [right[verdict]]
        assert found in allowed, f"{name}: {verdict}\n{job.spawned.err()}"


def test_modules_that_work(spawn: Spawner, installation: Installation, tmp_path: Path) -> None:
    """What they say at import and at exit is said once by each rank, and by no other process."""
    names = names_of(COMPANY)
    job = use(spawn, installation, tmp_path, WARM, names)
    assert job.lines("works_at_exit$") == job.lines(r"^rank (1 cycle 0|[01] cycle 1) works_at_exit$")
    assert len(job.lines("works_at_exit$")) == 3  # rank 0 was killed in cycle 0
    assert len(job.lines("^prints: imported$")) == 4
    assert len(re.findall("^prints: imported$", job.spawned.err(), re.MULTILINE)) == 4
    assert "Exception ignored" not in job.spawned.output()  # what Python says of handlers that raise at forks
    assert len(list((tmp_path / "temporary").iterdir())) == 1, "only that of the rank that was killed is left"
    check_verdicts(job, names)


@pytest.mark.slow
def test_modules_that_do_not(spawn: Spawner, installation: Installation, tmp_path: Path) -> None:
    """They are named once each, ranks import them by themselves, and what else there is stays warm."""
    names = _that_can_be_had(installation, tmp_path, names_of(UNFIT))
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
    assert {module.group for module in MODULES.values()} == {COMPANY, UNFIT, LIBRARY}


# -- libraries whose import leaves threads, seeds or folders -------------------------------------------------


@pytest.mark.slow
def test_libraries(spawn: Spawner, installation: Installation, tmp_path: Path) -> None:
    """With two threads for each rank: OpenBLAS's go before a fork and come back, OpenMP's would hang the ranks.

    wandb's temporary folders are each rank's own, and only a rank that is killed leaves them behind.
    """
    installation.link_all()
    names = [name for name in names_of(LIBRARY) if name != "uses_wandb" or _has_wandb()]
    job = use(spawn, installation, tmp_path, WARM, names, env={"OMP_NUM_THREADS": "2"})
    if _has_wandb():
        left = [path for path in (tmp_path / "temporary").iterdir() if "wandb" in path.name]
        assert len(left) == 2, "only those of the rank that was killed are left"
    check_verdicts(job, names)


def _has_wandb() -> bool:
    """Without importing it, which would leave its folders here, too."""
    return importlib.util.find_spec("wandb") is not None
