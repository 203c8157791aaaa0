"""A stand-in of NVML whose facts a test changes while it is read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.straggler.kernels.conftest import build_nvml

HEALTHY = {"SLOWED": 0, "REMAP_PENDING": 0}
Facts = Callable[..., None]


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the stand-in of NVIDIA's library."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc: the stand-in of NVML cannot be built")
    folder = tmp_path_factory.mktemp("nvml")
    build_nvml(folder)
    return folder


@pytest.fixture
def facts(nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Facts:
    """Set facts of the stand-in other than a healthy GPU's; also for processes that run already."""
    path = tmp_path / "facts"

    def set_facts(**changes: int) -> None:
        text = "".join(f"{name}={value}\n" for name, value in {**HEALTHY, **changes}.items())
        whole = path.with_suffix(".new")
        whole.write_text(text)
        whole.rename(path)

    monkeypatch.setenv("LD_LIBRARY_PATH", str(nvml))
    monkeypatch.setenv("NVML_INDEX", "0")
    monkeypatch.setenv("NVML_FACTS", str(path))
    set_facts()
    return set_facts
