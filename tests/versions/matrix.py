"""`make matrix`: the same jobs on each supported torch, each in an environment of its own, and docs/versions.md.

    python -m tests.versions.matrix                  all environments; writes the table into the page
    python -m tests.versions.matrix 2.8.0 2.15.0     these only; the page stays

Each environment is under build/matrix and takes several GB, as torch brings CUDA. A Python that is not installed is
replaced by the one that runs this; the table names the one that was used. Tests run the source tree: the installed
copy brings its requirements. Does not cover: GPUs.
"""

from __future__ import annotations

import glob
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "build" / "matrix"
PROJECT = ROOT / "pyproject.toml"
PAGE = ROOT / "docs" / "versions.md"
BEGIN, END = "<!-- begin: make matrix -->", "<!-- end -->"
ROWS = {
    "test_undisturbed_job_takes_each_step_once": "two ranks, undisturbed; timeouts are learned",
    "test_hang_and_kill_are_survived[warm]": "a rank hangs, later one is killed; verdict with stack and collective",
    "test_hang_and_kill_are_survived[cold]": "the same with cold start",
    "test_two_nodes_restart_together": "the same with two launchers",
    "test_preempted_job_saves_and_resumes": "SIGTERM: all ranks stop after one step and save; the next job resumes",
    "test_slow_rank_is_named": "a slow rank is named",
    "test_known_options_are_those_of_the_installed_torch": "Holdfast knows torchrun's options",
}
FRAMEWORKS = {"lightning": "ptl_resiliency", "transformers": "integrations/transformers"}
TESTS = [
    "tests/versions/test_supported_torch.py",
    "tests/config/test_options.py::test_known_options_are_those_of_the_installed_torch",
    "tests/config/test_options.py::test_keys_are_those_that_the_installed_torch_reads",
    "tests/ptl_resiliency/test_last_checkpoint.py",
    "tests/integrations/transformers/test_whole_checkpoints.py",
]


@dataclass(frozen=True)
class Environment:
    """One version of everything; `pythons` are tried in this order."""

    torch: str
    pythons: tuple[str, ...]
    lightning: str
    transformers: str
    accelerate: str

    @property
    def home(self) -> Path:
        return HOME / f"torch-{self.torch}"

    @property
    def results(self) -> Path:
        return HOME / f"torch-{self.torch}.xml"

    @cached_property
    def python(self) -> str:
        return next(filter(None, map(find_python, self.pythons)), sys.executable)

    def install(self) -> None:
        """Make the environment, unless it is there with the same requirements."""
        frameworks = [f"{name}=={self.lightning}" for name in ("lightning", "pytorch-lightning")]
        frameworks += [f"transformers=={self.transformers}", f"accelerate=={self.accelerate}"]
        steps = [[f"torch=={self.torch}"], [f"{ROOT}[test]", "matplotlib", "scikit-learn", *frameworks]]
        stamp = self.home / "installed"
        wanted = "\n".join([self.python, *(each for step in steps for each in step), PROJECT.read_text()])
        if stamp.exists() and stamp.read_text() == wanted:
            return
        subprocess.run([self.python, "-m", "venv", "--clear", str(self.home)], check=True)
        pip = [str(self.home / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        # A machine's constraints may cap torch (pip reads them from its configuration); the versions here are exact.
        environ = {**os.environ, "PIP_CONSTRAINT": os.devnull}
        for step in steps:
            subprocess.run([*pip, *step], check=True, env=environ)
        stamp.write_text(wanted)

    def test(self) -> bool:
        """Install what is missing and run the tests; False if anything failed."""
        self.results.unlink(missing_ok=True)
        try:
            self.install()
        except subprocess.CalledProcessError as error:
            print(f"matrix: torch {self.torch} cannot be installed: {error}", file=sys.stderr)
            return False
        python = str(self.home / "bin" / "python")
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
        return subprocess.run([*command, f"--junitxml={self.results}"], cwd=ROOT).returncode == 0

    def column(self) -> list[str]:
        """Its column of the table."""
        asked = subprocess.run([self.python, "-V"], check=True, capture_output=True, text=True)
        version = asked.stdout.split()[1]
        found = cases(self.results)
        cells = [mark(case for case in found if case.get("name") == test) for test in ROWS]
        for name, folder in FRAMEWORKS.items():
            place = folder.replace("/", ".")
            result = mark(case for case in found if place in case.get("classname", ""))
            cells.append(f"{getattr(self, name)} {result}")
        return [self.torch, version, *cells]


ENVIRONMENTS = [
    Environment("2.8.0", ("3.10",), "2.4.0", "4.46.3", "1.1.1"),
    Environment("2.9.1", ("3.11",), "2.4.0", "4.46.3", "1.1.1"),
    Environment("2.11.0", ("3.12",), "2.5.6", "4.57.6", "1.11.0"),
    Environment("2.13.0", ("3.11",), "2.6.6", "5.23.0", "1.15.0"),
    Environment("2.15.0", ("3.14", "3.13", "3.12"), "2.6.6", "5.23.0", "1.15.0"),
]


def find_python(version: str) -> str | None:
    """An interpreter of this version that runs: by name, or one of pyenv's."""
    pyenv = os.environ.get("PYENV_ROOT", os.path.expanduser("~/.pyenv"))
    for candidate in (f"python{version}", *sorted(glob.glob(f"{pyenv}/versions/{version}.*/bin/python3"))):
        try:
            if subprocess.run([candidate, "-c", "import ensurepip"], capture_output=True).returncode == 0:
                return candidate
        except OSError:
            continue
    return None


def cases(results: Path) -> list[ElementTree.Element]:
    """What pytest has written; nothing where it did not run to its end."""
    return list(ElementTree.parse(results).getroot().iter("testcase")) if results.exists() else []


def mark(found: Iterable[ElementTree.Element]) -> str:
    """What became of these tests; none at all is a failure."""
    outcomes = {
        "✗" if case.find("failure") is not None or case.find("error") is not None
        else "–" if case.find("skipped") is not None
        else "✓"
        for case in found
    }  # fmt: skip
    return next((each for each in "✗✓–" if each in outcomes), "✗")


def write_table(environments: list[Environment]) -> None:
    """Replace the part of the page between the two marks."""
    titles = [
        "torch",
        "Python",
        *ROWS.values(),
        *(f"complete checkpoints with {name}" for name in FRAMEWORKS),
    ]
    table = zip(titles, *(each.column() for each in environments), strict=True)
    lines = [f"| {' | '.join(cells)} |" for cells in table]
    lines.insert(1, "|---" * (len(environments) + 1) + "|")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text("\n".join([before + BEGIN, *lines, END + after]))


def main(wanted: list[str]) -> int:
    known = [each.torch for each in ENVIRONMENTS]
    if unknown := set(wanted) - set(known):
        print(
            f"matrix: no environment with torch {', '.join(unknown)}: there are {', '.join(known)}",
            file=sys.stderr,
        )
        return 2
    failed = []
    for environment in ENVIRONMENTS:
        if wanted and environment.torch not in wanted:
            continue
        print(f"-- torch {environment.torch}, {environment.python}", flush=True)
        if not environment.test():
            failed.append(environment.torch)
    if not wanted:
        write_table(ENVIRONMENTS)
    if failed:
        print(f"matrix: failed with torch {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
