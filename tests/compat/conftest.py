"""The second name in a test: in this process for one test, or in an environment of its own for processes.

It is never installed in the environment of the tests.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.gpu_environment import link_packages

COMPAT = Path(__file__).resolve().parents[2] / "compat"
NAME = "nvidia_resiliency_ext"


@pytest.fixture
def alias(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process can import the second name; its modules are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(COMPAT / "src"))
    finders = list(sys.meta_path)
    import holdfast_nvrx_start

    holdfast_nvrx_start.install()
    yield
    sys.meta_path[:] = finders
    for module in [
        each
        for each in sys.modules
        if each.partition(".")[0] in (NAME, "holdfast_nvrx", "holdfast_nvrx_start")
    ]:
        del sys.modules[module]


@pytest.fixture(scope="session")
def linked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A Python with all packages of the tests and the second name, and its folder of packages."""
    python, packages = link_packages(
        tmp_path_factory.mktemp("alias") / "environment", without=("__editable__", "holdfast")
    )
    for source in (COMPAT / "src").glob("holdfast_nvrx*"):
        (packages / source.name).symlink_to(source)
    command = python.parent / "ft_launcher"
    command.write_text(f"#!{python}\nfrom holdfast.fault_tolerance.launcher.main import console\nconsole()\n")
    command.chmod(0o755)
    return python, packages


@pytest.fixture
def python(linked: tuple[Path, Path]) -> str:
    """The interpreter in which a process that a test starts can import the second name."""
    return str(linked[0])
