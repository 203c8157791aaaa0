"""An environment with this tree installed, made without network from what a Python already has.

What always holds: nothing is written into the Python that it is made from; packages of that Python are links.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from .check import ROOT

NEEDED = {"yaml": "PyYAML", "rich": "rich", "numpy": "numpy", "pynvml": "nvidia-ml-py"}
CORES = ("straggler/kernels/_cupti_core.so", "_step.abi3.so")
SOURCES = ("src", "setup.py", "pyproject.toml", "README.md", "LICENSE")


def linked(folder: Path, without: tuple[str, ...] = ()) -> tuple[Path, Path]:
    """A new environment with links to all packages of this Python, but for names that begin so.

    Gives its Python and its folder of packages. That this Python may itself be an environment is why a link is made for
    each package: an environment of an environment does not see the packages of the first.
    """
    venv.EnvBuilder(symlinks=True, with_pip=False, clear=True).create(folder)
    (packages,) = (folder / "lib").glob("python3*/site-packages")
    for place in map(Path, sys.path):
        if place.name not in ("site-packages", "dist-packages"):
            continue
        for source in place.iterdir():
            target = packages / source.name
            if source.suffix != ".pth" and not source.name.startswith(without) and not target.exists():
                target.symlink_to(source)
    return folder / "bin" / "python", packages


def install(folder: Path, wheels: Path | None) -> tuple[Path, list[str]]:
    """Install this tree into a new environment; gives its Python, and what is missing or was done without.

    `wheels` is a folder with wheels for what is missing. Raises RuntimeError where pip fails.
    """
    python, packages = linked(folder / "environment", without=("holdfast", "__editable__"))
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(ROOT / name, source / name)
    options = ["--no-index", *(["--find-links", str(wheels)] if wheels else [])]
    log = folder / "install.log"
    # Where a requirement cannot be had, without any.
    if not _pip(python, log, *options, "--no-build-isolation", f"{source}[gpu,straggler]"):
        _pip(python, log, *options, "--no-build-isolation", "--no-deps", str(source))
    installed = packages / "holdfast"
    if not installed.exists():
        raise RuntimeError(f"the tree cannot be installed: {log.read_text()[-500:]}")
    look = (
        f"from importlib.util import find_spec; print(*(each for each in {[*NEEDED]} if not find_spec(each)))"
    )
    lacking = subprocess.run(
        [str(python), "-c", look], check=True, capture_output=True, text=True
    ).stdout.split()
    notes = [f"{NEEDED[name]} is missing and was done without" for name in lacking]
    notes += [f"{name} was not built: see {log}" for name in CORES if not (installed / name).exists()]
    return python, notes


def _pip(python: Path, log: Path, *arguments: str) -> bool:
    """Install without network. Whether it did."""
    line = [str(python), "-m", "pip", "install", "--disable-pip-version-check", *arguments]
    with log.open("ab") as output:
        environment = {**os.environ, "PYTHONPATH": ""}
        return subprocess.run(line, env=environment, stdout=output, stderr=subprocess.STDOUT).returncode == 0
