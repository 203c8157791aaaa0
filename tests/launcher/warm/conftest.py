"""Jobs that are run twice, cold and warm, and an installation of its own for modules that are not fit to be forked.

What always holds: a job of two ranks fails once, so that its second cycle is a restart, which is what standbys are for.
Does not cover: how a standby is made; these tests know the command line, the log and the journal only.
"""

from __future__ import annotations

import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.jobs import LAUNCHER, Job, patience, patient
from tests.processes import Spawner

WARM = "on"
"""What `--ft-warm-start` is given for a job that is to start warm."""

COLD = "off"

HERE = Path(__file__).resolve().parent


def starts(job: Job, cycle: int) -> list[str]:
    """How each rank of this cycle was started, by the journal: `warm` or `cold`."""
    return [str(each["start"]) for each in job.journal("rank_start") if each["cycle"] == cycle]


def run(
    spawn: Spawner,
    folder: Path,
    mode: str,
    *arguments: str | Path,
    env: Mapping[str, str | None] | None = None,
    launcher: Sequence[str] = (*patient(), *LAUNCHER),
    under: Sequence[str] = (),
) -> Job:
    """A job of two ranks and one restart to its good end. Its files are below `folder`/`mode`."""
    run_dir, notes, logs = (folder / mode / name for name in ("run", "notes", "logs"))
    notes.mkdir(parents=True)
    flags = ["--nproc-per-node", "2", "--max-restarts", "1", "--ft-warm-start", mode]
    flags += ["--ft-run-dir", str(run_dir), "--log-dir", str(logs)]
    spawned = spawn(
        [*under, *launcher, *flags, *arguments], env={"NOTES": str(notes), **(env or {})}, cwd=folder
    )
    job = Job(spawned, run_dir, notes)
    job.end(0)
    return job


def must_be_warm(job: Job, cycles: Sequence[int]) -> None:
    """Every rank of these cycles was a standby."""
    found = {cycle: starts(job, cycle) for cycle in cycles}
    assert found == {cycle: ["warm", "warm"] for cycle in cycles}, job.spawned.err()


class Installation:
    """A Python environment with the test's own packages installed in it, and links to some of the real ones."""

    def __init__(self, folder: Path) -> None:
        venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
        self.python = folder / "bin" / "python"
        (self.packages,) = (folder / "lib").glob("python3*/site-packages")
        self.real = Path(pytest.__file__).resolve().parents[1]

    def link(self, *names: str) -> None:
        """Install what is installed for the tests: by a link for each name in its folder that begins so."""
        for name in names:
            for source in self.real.glob(f"{name}*"):
                (self.packages / source.name).symlink_to(source)

    def link_all(self) -> None:
        """Install all that is installed for the tests."""
        for source in self.real.iterdir():
            if source.suffix != ".pth" and not (self.packages / source.name).exists():
                (self.packages / source.name).symlink_to(source)

    def launcher(self, source: Path) -> list[str]:
        """The launcher under this Python. It alone finds torch and Holdfast, its ranks have what is installed here."""
        paths = [str(self.real), str(source)]
        console = "from holdfast.fault_tolerance.launcher import main; main.console()"
        return [str(self.python), "-c", f"import sys; sys.path += {paths!r}\n{patience()}\n{console}"]


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    """An environment without packages."""
    return Installation(tmp_path / "installation")
