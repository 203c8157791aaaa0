"""Installed and removed as a user does it, with pip in an environment of its own, beside the original and without.

A stand-in plays the original: a wheel of that name that has one of its folders. Nothing is downloaded.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from tests.compat.conftest import COMPAT, NAME
from tests.conftest import SOURCE
from tests.processes import Spawner

Pip = Callable[..., "subprocess.CompletedProcess[str]"]

ASK = (
    "import importlib.metadata as m, nvidia_resiliency_ext as n; "
    "print(n.__version__, m.version('nvidia-resiliency-ext'), m.version('holdfast-nvrx'), n.__file__)"
)


LINE = "pip uninstall -y holdfast-nvrx holdfast nvidia-resiliency-ext"
"""What the page and the errors say to run first, whatever is there."""

REMOVED = [word for word in LINE.split()[2:] if word != "holdfast"]
"""Without holdfast, which lies outside of the environments here."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A checkout of it: builds leave things in theirs."""
    skip = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    return Path(shutil.copytree(COMPAT, tmp_path / "source", ignore=skip))


@pytest.fixture
def original(tmp_path: Path) -> Path:
    """A wheel that pip takes for the original."""
    wheel = tmp_path / "nvidia_resiliency_ext-0.4.1-py3-none-any.whl"
    info = "nvidia_resiliency_ext-0.4.1.dist-info"
    files = {
        f"{NAME}/inprocess/__init__.py": "",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: nvidia-resiliency-ext\nVersion: 0.4.1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"]))
    return wheel


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The site-packages of an empty environment that sees the tests' own, and so pip, setuptools and torch."""
    venv.create(tmp_path / "env", with_pip=False)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = tmp_path / "env" / "lib" / version / "site-packages"
    (found / "beside.pth").write_text(f"{SOURCE}\n{sysconfig.get_path('purelib')}\n")
    return found


@pytest.fixture
def python(tmp_path: Path) -> Pip:
    """Runs the environment's Python."""

    def run(*words: str | Path, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
        done = subprocess.run(
            [tmp_path / "env" / "bin" / "python", *words],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=tmp_path,
            env=environment,
        )
        assert code is None or done.returncode == code, done.stdout + done.stderr
        return done

    return run


@pytest.fixture
def pip(python: Pip) -> Pip:
    def run(command: str, *words: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
        offline = (
            ["--no-deps", "--no-index", "--no-build-isolation"] if command in ("install", "wheel") else []
        )
        return python("-m", "pip", command, *offline, *words, code=code)

    return run


@pytest.mark.slow
def test_a_life_alone(python: Pip, pip: Pip, place: Path, source: Path, original: Path) -> None:
    before = sorted(path.name for path in place.iterdir())
    pip("install", source)
    assert python("-c", ASK).stdout.split() == ["0.6.0+holdfast"] * 2 + [
        holdfast.__version__,
        str(place / NAME / "__init__.py"),
    ]
    assert sorted(path.name for path in place.iterdir() if path.name not in before) == [
        f"holdfast_nvrx-{holdfast.__version__}.dist-info",
        NAME,
        f"{NAME}-0.6.0+holdfast.dist-info",
    ]
    complaints = pip("check", code=None).stdout  # of what lies beside, perhaps
    assert "resiliency" not in complaints and "holdfast-nvrx" not in complaints

    # The second name is nobody's to remove or to replace, and pip says whose it is.
    for refused in (["uninstall", "-y", "nvidia-resiliency-ext"], ["install", original]):
        done = pip(*refused, code=1)
        assert "RECORD" in done.stderr and "holdfast-nvrx" in done.stderr, done.stderr
    assert python("-c", ASK).stdout.startswith(f"0.6.0+holdfast 0.6.0+holdfast {holdfast.__version__}")

    for _ in range(2):  # with ours, and with nothing
        pip("uninstall", *REMOVED)
        assert sorted(path.name for path in place.iterdir()) == before


@pytest.mark.slow
def test_never_with_the_original(python: Pip, pip: Pip, place: Path, source: Path, original: Path) -> None:
    pip("wheel", "--wheel-dir", source.parent, source)
    (wheel,) = source.parent.glob("holdfast_nvrx-*.whl")

    pip("install", original)
    pip("uninstall", *REMOVED)
    assert [path for path in place.rglob("*") if path.is_file()] == [place / "beside.pth"]
    pip("install", original)
    there = sorted(path.name for path in place.rglob("*"))
    for how in ([], ["-e"]):
        refused = pip("install", *how, source, code=1)
        assert "nvidia-resiliency-ext is installed here" in refused.stderr
        assert f"Nothing was installed. First: {LINE}" in refused.stderr
        assert sorted(path.name for path in place.rglob("*")) == there

    # A wheel that was built elsewhere asks nobody. The import does.
    pip("install", wheel)
    hidden = f"try:\n    import {NAME}.straggler\nexcept ImportError as error:\n    print(error)\n"
    done = python("-c", hidden)
    for text in (done.stdout, done.stderr):
        assert (
            "nvidia-resiliency-ext (nvidia_resiliency_ext-0.4.1.dist-info) and holdfast-nvrx are both" in text
        )
        assert f"installed in {place}" in text and "Neither is used." in text
    assert "RuntimeWarning" in done.stderr
    assert "ImportError" in python("-m", f"{NAME}.fault_tolerance.launcher", "--help", code=1).stderr

    # What it says to do.
    assert f"{LINE}, then install" in done.stdout
    pip("uninstall", *REMOVED)
    # pip leaves the empty folder of two owners; no file.
    assert [path for path in place.rglob("*") if path.is_file()] == [place / "beside.pth"]
    pip("install", wheel)
    assert python("-c", ASK).stdout.startswith(f"0.6.0+holdfast 0.6.0+holdfast {holdfast.__version__}")


@pytest.mark.usefixtures("alias")
@pytest.mark.parametrize(
    "name",
    [
        "nvidia_resiliency_ext-0.4.1.dist-info",
        "nvidia_resiliency_ext-0.6.0+holdfast.dist-info",  # overwritten by somebody: it does not say that it is ours
        "nvidia-resiliency-ext-0.2.0.dist-info",
        "nvidia.resiliency.ext-0.2.0.egg-info",
    ],
)
def test_the_original_in_every_spelling(name: str, tmp_path: Path) -> None:
    original = importlib.import_module(f"{NAME}._original")
    package = str(tmp_path / NAME / "__init__.py")
    for other in ("nvidia_resiliency_extras-1.0.dist-info", "holdfast_nvrx-0.1.0.dist-info", NAME):
        (tmp_path / other).mkdir()
    original.refuse_beside_the_original(package)
    (tmp_path / name).mkdir()
    with (
        pytest.warns(RuntimeWarning, match="are both installed"),
        pytest.raises(ImportError, match="are both"),
    ):
        original.refuse_beside_the_original(package)
    (tmp_path / name / "INSTALLER").write_text("holdfast-nvrx\n")
    original.refuse_beside_the_original(package)
    original.refuse_beside_the_original("/no/such/archive.zip/package/__init__.py")


def test_a_half_says_so(spawn: Spawner, tmp_path: Path) -> None:
    """As it is left when only the original is removed from a mixture: what both had is gone."""
    skip = shutil.ignore_patterns("__pycache__")
    package = Path(shutil.copytree(COMPAT / "src" / NAME, tmp_path / NAME, ignore=skip))
    environment: dict[str, str | None] = {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(SOURCE)])}
    ask = f"try:\n    import {NAME}.attribution.straggler\nexcept ImportError as error:\n    print(error)\n"
    run = spawn.python(ask, env=environment)
    assert (run.wait(), run.output()) == (0, "")
    shutil.rmtree(package / "straggler")
    (package / "fault_tolerance" / "__init__.py").unlink()
    run = spawn.python(ask, env=environment)
    assert run.wait() == 0
    for text in (run.out(), run.err()):
        assert f"in {tmp_path} is a half: fault_tolerance, straggler are gone" in text
        assert f"To have Holdfast: {LINE}, then install" in text
    assert "RuntimeWarning" in run.err()


@pytest.mark.usefixtures("alias")
def test_every_subpackage_is_looked_for() -> None:
    folders = [path.parent.name for path in (COMPAT / "src" / NAME).glob("*/__init__.py")]
    assert sorted(importlib.import_module(f"{NAME}._original").SUBPACKAGES) == sorted(folders)


def test_the_page_has_the_line() -> None:
    for page in (COMPAT.parent / "docs" / "drop-in.md", COMPAT / "README.md"):
        text = page.read_text()
        assert f"$ {LINE} " in text
        assert "uninstall -y nvidia" not in text, "which fails where ours is installed"
