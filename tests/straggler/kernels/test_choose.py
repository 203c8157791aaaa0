"""Which source of kernel times is used, and when; which libcupti, and why none; the wheel with and without the core."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from holdfast.straggler.kernels import choose as choosing
from holdfast.straggler.kernels.choose import NO_DRIVER, NOT_YET, choose
from holdfast.straggler.kernels.cupti import tool_in_the_way
from holdfast.straggler.kernels.source import Capture, KernelSource, KernelWindow
from tests.straggler.doubles import Told
from tests.straggler.kernels.conftest import Run


def chosen(
    environ: Mapping[str, str] | None = None,
    driver: bool = True,
    usable: bool = True,
    cupti: KernelSource | str | Exception = "it is in use by nsys",
) -> KernelSource:
    """What is used after the first section."""

    def open_cupti(max_sections: int | None, may_stay: bool) -> KernelSource | str:
        if isinstance(cupti, Exception):
            raise cupti
        return cupti

    source = choose(environ or {}, lambda: driver, lambda: usable, open_cupti)
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


def test_closed_before_cuda_was_initialised() -> None:
    source = choose({}, lambda: True, lambda: False, lambda *_: Told())
    source.start("fwd")
    source.stop()
    source.close()
    assert source.name == "none"


@pytest.mark.parametrize("when", ["usable", "open"])
def test_no_error_gets_out(when: str) -> None:
    def broken() -> bool:
        raise RuntimeError("CUDA driver initialization failed")

    if when == "open":
        source = chosen(cupti=OSError("libcupti.so.13: file too short"))
        assert source.reason == "choosing a source failed: OSError: libcupti.so.13: file too short"
    else:
        source = choose({}, lambda: True, broken, lambda *_: Told())
        source.start("fwd")
        source.stop()
        assert source.reason == "choosing a source failed: RuntimeError: CUDA driver initialization failed"
    assert source.name == "none"
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


# -- which libcupti is used, and why none can be


OPENED = """
def mapped():
    with open("/proc/self/maps") as maps:
        return {line.split()[-1] for line in maps if "libcupti.so" in line}
"""


@pytest.mark.parametrize("major", [12, 13])
def test_a_copy_that_is_loaded_is_used(run: Run, fakes: Path, tmp_path: Path, major: int) -> None:
    """There is another one in CUDA_HOME, and one that the loader would find."""
    home = tmp_path / "lib64"
    home.mkdir()
    name = f"libcupti.so.{major}"
    (home / name).write_bytes((fakes / name).read_bytes())
    code = f"""
{OPENED}
stand_in_torch("{major}.4")
one = open_cupti()
assert not isinstance(one, str), one
one.start("fwd"); launch("gemm"); one.stop()
assert one.take().records == 1 and mapped() == {{os.environ["FAKE_CUPTI"]}}, mapped()
"""
    environment = {"HOLDFAST_CUPTI_LIBRARY": None, "CUDA_HOME": str(tmp_path)}
    run(code, major=major, **environment)


@pytest.mark.parametrize(
    ("where", "major"),
    [("wheel", 12), *((where, 13) for where in ("wheel", "cuda_home", "extras", "loader"))],
)
def test_where_it_is_found(run: Run, fakes: Path, tmp_path: Path, where: str, major: int) -> None:
    wheel = {12: "site/nvidia/cuda_cupti/lib", 13: "site/nvidia/cu13/lib"}[major]
    folder = {"wheel": wheel, "cuda_home": "lib64", "extras": "extras/CUPTI/lib64", "loader": "ld"}[where]
    (tmp_path / folder).mkdir(parents=True)
    libraries = tmp_path / "ld"
    libraries.mkdir(exist_ok=True)
    (libraries / "libcuda.so.1").write_bytes((fakes / "libcuda.so.1").read_bytes())
    name = f"libcupti.so.{major}"
    (tmp_path / folder / name).write_bytes((fakes / name).read_bytes())
    code = f"""
{OPENED}
sys.path.append({str(tmp_path / "site")!r})
stand_in_torch("{major}.1")
assert mapped() == set()
one = open_cupti()
assert not isinstance(one, str), one
assert mapped() == {{{str(tmp_path / folder / name)!r}}}, mapped()
"""
    environment = {
        "FAKE_CUPTI": None,
        "HOLDFAST_CUPTI_LIBRARY": None,
        "CUDA_HOME": str(tmp_path),
        "LD_LIBRARY_PATH": str(libraries),
    }
    run(code, **environment)


@pytest.mark.parametrize(
    ("prepare", "environment", "reason"),
    [
        ("", {}, "torch is not loaded"),
        ("stand_in_torch(None)", {}, "torch is built without CUDA"),
        (
            "stand_in_torch()",
            {"LD_LIBRARY_PATH": None},
            "no CUDA driver (libcuda.so.1: cannot open shared object",
        ),
        (
            "",
            {"HOLDFAST_CUPTI_LIBRARY": "/no/such.so"},
            "no CUPTI library (/no/such.so: cannot open shared object",
        ),
        (
            "stand_in_torch()",
            {"CUDA_INJECTION64_PATH": "/opt/tool.so"},
            "CUPTI is left to the profiler that started this process (CUDA_INJECTION64_PATH is set)",
        ),
    ],
)
def test_why_there_is_none(run: Run, prepare: str, environment: dict[str, str | None], reason: str) -> None:
    code = f"{prepare}\ntold = open_cupti()\nassert isinstance(told, str) and told.startswith({reason!r}), told\n"
    run(code, **{"FAKE_CUPTI": None, "HOLDFAST_CUPTI_LIBRARY": None, **environment})


def test_a_library_without_the_functions_is_none(run: Run, fakes: Path) -> None:
    run(
        """
told = open_cupti()
assert told.startswith("no CUPTI library (") and told.endswith("libcuda.so.1 has no cuptiGetVersion)"), told
""",
        HOLDFAST_CUPTI_LIBRARY=str(fakes / "libcuda.so.1"),
    )


def test_without_the_core_there_is_a_reason(run: Run, tmp_path: Path) -> None:
    code = """
from pathlib import Path
stand_in_torch()
cupti.LIBRARY = Path(sys.argv[1] if len(sys.argv) > 1 else "{path}")
load_core.cache_clear()
told = open_cupti()
assert told.startswith("{reason}"), told
"""
    missing = "the kernel core was not built (no C++ compiler when holdfast was installed)"
    run(code.format(path=tmp_path / "none.so", reason=missing))
    broken = tmp_path / "broken.so"
    broken.write_text("no library")
    run(code.format(path=broken, reason="the kernel core cannot be loaded: "))


def test_installations_of_nsight_are_no_sessions() -> None:
    assert tool_in_the_way({"NSYS_HOME": "/opt/nsys", "NSYS_ROOT_DIR": "/opt", "PATH": "/bin"}) == ""
    assert tool_in_the_way({"NSYS_PROFILING_SESSION_ID": "1"}) == "NSYS_PROFILING_SESSION_ID"


# -- the wheel


ROOT = Path(__file__).resolve().parents[3]
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
    needed = subprocess.run(
        [sys.executable, "-c", f"import ctypes; print(ctypes.CDLL({library!r}).holdfast_kernels_version())"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert needed.stdout.strip() == "2"
