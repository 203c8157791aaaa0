"""Which source of kernel times is used, and when; which libcupti, and why none; the wheel with and without the core."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from holdfast.straggler.kernels import choose as choosing
from holdfast.straggler.kernels.choose import NO_DRIVER, NOT_YET, choose
from holdfast.straggler.kernels.cupti import tool_in_the_way
from holdfast.straggler.kernels.source import Capture, KernelSource, KernelWindow
from tests.straggler.doubles import Told
from tests.straggler.kernels.conftest import NAMES, ROOT, Run


def chosen(
    environ: Mapping[str, str] | None = None,
    usable: Callable[[], bool] = lambda: True,
    cupti: KernelSource | str | Exception = "it is in use by nsys",
) -> KernelSource:
    """What is used after the first section."""

    def open_cupti(max_sections: int | None, may_stay: bool) -> KernelSource | str:
        if isinstance(cupti, Exception):
            raise cupti
        return cupti

    source = choose(environ or {}, lambda: True, usable, open_cupti)
    source.start("fwd")
    source.stop()
    return source


@pytest.mark.parametrize("environ", [{}, {"HOLDFAST_KERNEL_SOURCE": "cupti"}])
def test_cupti_where_it_can_be_opened(environ: dict[str, str]) -> None:
    cupti = Told(KernelWindow(records=7))
    source = chosen(environ, cupti=cupti)
    assert (source.name, source.reason) == ("told", "")
    assert source.take().records == 7
    source.close()
    assert cupti.calls == ["start fwd", "stop", "close"]


@pytest.mark.parametrize(
    ("value", "name", "reason"),
    [
        ("cupti", "none", "HOLDFAST_KERNEL_SOURCE=cupti, but it is in use by nsys"),
        ("cuda_events", "cuda_events", "HOLDFAST_KERNEL_SOURCE=cuda_events"),
        ("none", "none", "HOLDFAST_KERNEL_SOURCE=none"),
        ("", "cuda_events", "cupti is not used: it is in use by nsys"),
    ],
)
def test_the_environment_decides(value: str, name: str, reason: str) -> None:
    source = chosen({"HOLDFAST_KERNEL_SOURCE": value})
    assert (source.name, source.reason) == (name, reason)


@pytest.mark.parametrize("value", ["CUPTI", "cuda-events", "0"])
def test_a_wrong_value_says_what_is_allowed(value: str) -> None:
    with pytest.raises(ValueError, match="allowed are cupti, cuda_events, none, or nothing at all") as error:
        choose({"HOLDFAST_KERNEL_SOURCE": value})
    assert repr(value) in str(error.value)


def test_it_is_decided_at_the_first_section_after_cuda_was_initialised_and_once() -> None:
    state = {"usable": False, "opened": 0}
    cupti = Told(KernelWindow(), KernelWindow())

    def open_cupti(*_: object) -> Told:
        state["opened"] += 1
        return cupti

    source = choose({}, lambda: True, lambda: bool(state["usable"]), open_cupti)
    capture = Capture(source)
    key = capture.enter("load")
    state["usable"] = True  # the section that initialises CUDA is not measured: its end finds nothing to end
    capture.leave(key)
    assert (source.name, source.reason, source.take()) == ("none", NOT_YET, KernelWindow())
    assert state["opened"] == 0
    for _ in range(2):
        capture.leave(capture.enter("fwd"))
    assert state["opened"] == 1
    assert cupti.calls == ["start fwd", "stop"] * 2


def broken() -> bool:
    raise RuntimeError("CUDA driver initialization failed")


def test_no_error_gets_out() -> None:
    closed = chosen(usable=lambda: False, cupti=Told())
    closed.close()
    assert closed.name == "none"
    for source, error in (
        (chosen(cupti=OSError("libcupti.so.13: file too short")), "OSError: libcupti.so.13: file too short"),
        (chosen(usable=broken), "RuntimeError: CUDA driver initialization failed"),
    ):
        assert (source.name, source.reason) == ("none", f"choosing a source failed: {error}")
        assert source.take() == KernelWindow()


WITHOUT_DRIVER = """
import sys, holdfast.straggler
from pathlib import Path
from holdfast.straggler.kernels.choose import choose
source = choose()
print(source.name, "|", source.reason, "|", type(source).__name__)
assert not {"torch", "numpy"} & sys.modules.keys()
maps = Path("/proc/self/maps").read_text()
assert "libcuda.so" not in maps and "libcupti" not in maps, maps
source.start("fwd"); source.stop(); source.take(); source.close()
"""


def test_a_machine_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    if choosing._driver():
        pytest.skip("this machine has an NVIDIA driver")
    monkeypatch.delenv("HOLDFAST_KERNEL_SOURCE", raising=False)
    command = [sys.executable, "-W", "error", "-c", WITHOUT_DRIVER]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"none | {NO_DRIVER} | KernelSource\n"


# -- which libcupti is used; why none can be, is in cupti_checks.py


OPENED = """
import os, sys
from holdfast.straggler.kernels.cupti import open_cupti
from tests.straggler.kernels.fake import launch, stand_in_torch
def mapped():
    with open("/proc/self/maps") as maps:
        return {line.split()[-1] for line in maps if "libcupti.so" in line}
"""


@pytest.mark.parametrize("major", [12, 13])
def test_a_copy_that_is_loaded_is_used(run: Run, fakes: Path, tmp_path: Path, major: int) -> None:
    """There is another one in CUDA_HOME, and one that the loader would find."""
    (tmp_path / "lib64").mkdir()
    shutil.copy(fakes / NAMES[major], tmp_path / "lib64")
    code = f"""
stand_in_torch("{major}.4")
one = open_cupti()
assert not isinstance(one, str), one
one.start("fwd"); launch("gemm"); one.stop()
assert one.take().records == 1 and mapped() == {{os.environ["FAKE_CUPTI"]}}, mapped()
"""
    run(OPENED + code, major, HOLDFAST_CUPTI_LIBRARY=None, CUDA_HOME=str(tmp_path))


@pytest.mark.parametrize(
    ("folder", "major"),
    [
        ("site/nvidia/cuda_cupti/lib", 12),
        ("site/nvidia/cu13/lib", 13),
        ("lib64", 13),
        ("extras/CUPTI/lib64", 13),
        ("ld", 13),
    ],
)
def test_where_it_is_found(run: Run, fakes: Path, tmp_path: Path, folder: str, major: int) -> None:
    """In NVIDIA's wheels, in CUDA_HOME, and by the loader."""
    for place in (folder, "ld"):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
    shutil.copy(fakes / NAMES[major], tmp_path / folder)
    shutil.copy(fakes / "libcuda.so.1", tmp_path / "ld")
    code = f"""
sys.path.append({str(tmp_path / "site")!r})
stand_in_torch("{major}.1")
assert mapped() == set()
one = open_cupti()
assert not isinstance(one, str), one
assert mapped() == {{{str(tmp_path / folder / NAMES[major])!r}}}, mapped()
"""
    home, libraries = str(tmp_path), str(tmp_path / "ld")
    run(
        OPENED + code, FAKE_CUPTI=None, HOLDFAST_CUPTI_LIBRARY=None, CUDA_HOME=home, LD_LIBRARY_PATH=libraries
    )


def test_there_is_none_without_a_driver(run: Run) -> None:
    code = """
stand_in_torch()
told = open_cupti()
assert told.startswith("no CUDA driver (libcuda.so.1: cannot open shared object"), told
"""
    run(OPENED + code, FAKE_CUPTI=None, HOLDFAST_CUPTI_LIBRARY=None, LD_LIBRARY_PATH=None)


def test_installations_of_nsight_are_no_sessions() -> None:
    assert tool_in_the_way({"NSYS_HOME": "/opt/nsys", "NSYS_ROOT_DIR": "/opt", "PATH": "/bin"}) == ""
    assert tool_in_the_way({"NSYS_PROFILING_SESSION_ID": "1"}) == "NSYS_PROFILING_SESSION_ID"


# -- the wheel


CORE = "holdfast/straggler/kernels/_cupti_core.so"


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
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    (built,) = (folder / "dist").iterdir()
    return built, done.stdout + done.stderr


def contents(built: Path) -> list[str]:
    with zipfile.ZipFile(built) as archive:
        return archive.namelist()


@pytest.mark.slow
def test_without_a_compiler(tmp_path: Path) -> None:
    built, told = wheel(tmp_path, CC="/bin/false", CXX="/bin/false")
    assert built.name.endswith("-py3-none-any.whl")
    assert told.count("holdfast: warning: the kernel core was not built") == 1
    assert "Everything else works; GPU kernels are not timed through CUPTI." in told
    assert "holdfast/straggler/kernels/cupti.py" in contents(built)
    assert not any("native" in name or name.endswith(".so") for name in contents(built))


@pytest.mark.slow
@pytest.mark.variant
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++: there is no core to build")
def test_with_a_compiler(tmp_path: Path) -> None:
    built, told = wheel(tmp_path)
    assert "-py3-none-linux_" in built.name
    assert "warning: the kernel core" not in told
    assert CORE in contents(built)
    assert not any("native" in name for name in contents(built))
    with zipfile.ZipFile(built) as archive:
        library = archive.extract(CORE, tmp_path)
    program = f"import ctypes; print(ctypes.CDLL({library!r}).holdfast_kernels_version())"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "2"
