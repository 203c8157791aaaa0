"""The wheel: with the kernel core where there is a compiler, and without it, said once, where there is none."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CORE = "holdfast/straggler/kernels/_cupti_core.so"

pytestmark = pytest.mark.slow


def wheel(folder: Path, **environment: str) -> tuple[Path, str]:
    """A wheel built from a copy of the sources, and what the build said."""
    pytest.importorskip("setuptools.command.bdist_wheel", reason="setuptools 77 is not installed")
    source = folder / "source"
    shutil.copytree(
        ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
    )
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "bdist_wheel", "--dist-dir", str(folder / "dist")],
        cwd=source,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    (built,) = (folder / "dist").iterdir()
    return built, done.stdout + done.stderr


def contents(built: Path) -> list[str]:
    with zipfile.ZipFile(built) as archive:
        return archive.namelist()


def test_without_a_compiler(tmp_path: Path) -> None:
    built, told = wheel(tmp_path, CC="/bin/false", CXX="/bin/false")
    assert built.name.endswith("-py3-none-any.whl")
    assert told.count("holdfast: warning: the kernel core was not built") == 1
    assert "Everything else works; GPU kernels are not timed through CUPTI." in told
    assert "holdfast/straggler/kernels/cupti.py" in contents(built)
    assert not any("native" in name or name.endswith(".so") for name in contents(built))


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++: there is no core to build")
def test_with_a_compiler(tmp_path: Path) -> None:
    built, told = wheel(tmp_path)
    assert "-py3-none-linux_" in built.name
    assert "warning: the kernel core" not in told
    assert CORE in contents(built)
    assert not any("native" in name for name in contents(built))
    with zipfile.ZipFile(built) as archive:
        library = archive.extract(CORE, tmp_path)
    needed = subprocess.run(
        [sys.executable, "-c", f"import ctypes; print(ctypes.CDLL({library!r}).holdfast_kernels_version())"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert needed.stdout.strip() == "2"
