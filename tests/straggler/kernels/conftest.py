"""A CUDA driver and a libcupti without a GPU, built once, and processes that use them.

Libraries and CUPTI's callbacks belong to a process, so what needs them runs in one of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.straggler.kernels.cupti import load_core
from tests.processes import Spawner

ROOT = Path(__file__).resolve().parents[3]
NATIVE = Path(__file__).resolve().parent / "native"
NAMES = {12: "libcupti.so.12", 13: "libcupti.so.13"}

Run = Callable[..., None]


def build_fakes(folder: Path, *flags: str) -> None:
    """The fake libraries, with the real ones' sonames and versions of symbols."""
    gcc = ["gcc", "-O2", "-g", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", *flags]
    cuda = ["-Wl,-soname,libcuda.so.1", str(NATIVE / "fake_cuda.c"), "-o", str(folder / "libcuda.so.1")]
    subprocess.run([*gcc, *cuda], check=True)
    for name in NAMES.values():
        script = folder / f"{name}.map"
        script.write_text(f"{name} {{ global: cupti*; fake_*; local: *; }};\n")
        link = [f"-Wl,-soname,{name}", f"-Wl,--version-script={script}", str(NATIVE / "fake_cupti.c")]
        subprocess.run([*gcc, *link, "-o", str(folder / name), "-ldl", "-lpthread"], check=True)


def build_nvml(folder: Path) -> None:
    """A libnvidia-ml.so.1."""
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(
        ["gcc", "-w", "-shared", "-fPIC", str(NATIVE / "fake_nvml.c"), "-o", str(library)], check=True
    )


@pytest.fixture(scope="session")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the fake libraries, where there is a core to use them."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc: the fake libcupti cannot be built")
    core = load_core()
    if isinstance(core, str):
        pytest.skip(core)
    folder = tmp_path_factory.mktemp("fakes")
    build_fakes(folder)
    return folder


def with_fakes(fakes: Path, major: int = 13) -> dict[str, str | None]:
    """The environment of a process that uses these libraries."""
    return {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ['PYTHONPATH']}",
        "LD_LIBRARY_PATH": str(fakes),
        "FAKE_CUPTI": str(fakes / NAMES[major]),
        "HOLDFAST_CUPTI_LIBRARY": str(fakes / NAMES[major]),
        "CUDA_INJECTION64_PATH": None,
        "NSYS_PROFILING_SESSION_ID": None,
    }


@pytest.fixture
def run(spawn: Spawner, fakes: Path) -> Run:
    """Run a program with the fake libraries, to its good end."""

    def run(code: str, major: int = 13, **environment: str | None) -> None:
        process = spawn.python(code, env=with_fakes(fakes, major) | environment)
        assert process.wait() == 0, process.output()

    return run
