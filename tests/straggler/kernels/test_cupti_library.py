"""Which libcupti is used, and why none can be."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.straggler.kernels.cupti import tool_in_the_way
from tests.straggler.kernels.conftest import Run

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


@pytest.mark.parametrize("where", ["wheel", "cuda_home", "extras", "loader"])
@pytest.mark.parametrize("major", [12, 13])
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
