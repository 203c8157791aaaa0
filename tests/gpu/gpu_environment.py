"""An environment with this tree installed, made without network from the packages of another Python.

Always holds: nothing is written into that Python. Its packages become links.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from .gpu_check import ROOT

NEEDED = {"yaml": "PyYAML", "rich": "rich", "numpy": "numpy", "pynvml": "nvidia-ml-py"}
NATIVE = ("straggler/kernels/_cupti_core.so",)
SOURCES = ("src", "setup.py", "pyproject.toml", "README.md", "LICENSE")
LIMIT = 120.0  # seconds for pip


def link_packages(folder: Path, without: tuple[str, ...] = ()) -> tuple[Path, Path]:
    """Create an environment with a link to each package of this Python, except for prefixes in `without`.

    Links, because this Python may be an environment itself, whose packages `system_site_packages` would not show, and
    because a zygote imports only what is in its own site-packages, which excludes a `.pth` line.

    Returns:
        Its Python and its folder of packages.
    """
    venv.EnvBuilder(symlinks=True, with_pip=False, clear=True).create(folder)
    (packages,) = (folder / "lib").glob("python3*/site-packages")
    for place in map(Path, sys.path):
        if place.name not in ("site-packages", "dist-packages"):
            continue
        for source in place.iterdir():
            target = packages / source.name
            if source.name == "__pycache__":
                continue
            if source.suffix != ".pth" and not source.name.startswith(without) and not target.exists():
                target.symlink_to(source)
    return folder / "bin" / "python", packages


def install(folder: Path, wheels: Path | None) -> tuple[Path, list[str]]:
    """Install this tree into a new environment; `wheels` is a folder with wheels for missing packages.

    Returns:
        Its Python, and one line for each package or native library that is missing.

    Raises:
        RuntimeError: pip failed.
    """
    python, packages = link_packages(folder / "environment", without=("holdfast", "__editable__"))
    source, log = folder / "source", folder / "install.log"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(ROOT / name, source / name)
    _pip(python, log, "--no-build-isolation", "--no-deps", str(source))
    if not (packages / "holdfast").exists():
        raise RuntimeError(f"pip cannot install the tree: {log.read_text()[-500:]}")
    missing = _find_missing(python)
    if wheels:
        for name in missing:
            _pip(python, log, "--find-links", str(wheels.resolve()), NEEDED[name])
        missing = _find_missing(python)
    notes = [f"{NEEDED[name]} is missing" for name in missing]
    not_built = [name for name in NATIVE if not (packages / "holdfast" / name).exists()]
    return python, notes + [f"{name} was not built (see install.log)" for name in not_built]


def _find_missing(python: Path) -> list[str]:
    missing = f"(each for each in {[*NEEDED]} if not find_spec(each))"
    command = [str(python), "-c", f"from importlib.util import find_spec; print(*{missing})"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def _pip(python: Path, log: Path, *arguments: str) -> None:
    line = [str(python), "-m", "pip", "install", "--no-index", "--disable-pip-version-check", *arguments]
    with log.open("ab") as output:
        try:
            environment = {**os.environ, "PYTHONPATH": ""}
            subprocess.run(line, env=environment, stdout=output, stderr=subprocess.STDOUT, timeout=LIMIT)
        except subprocess.TimeoutExpired:
            output.write(b"pip: time limit reached\n")
