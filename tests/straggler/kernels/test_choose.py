"""Which source of kernel times is used, when that is decided, and that nothing is touched where there is no GPU."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from holdfast.straggler.kernels import choose as choosing
from holdfast.straggler.kernels.choose import NO_DRIVER, NOT_YET, choose
from holdfast.straggler.kernels.source import Capture, KernelSource, KernelWindow
from tests.straggler.sources import Told


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


def test_cupti_where_it_can_be_opened() -> None:
    cupti = Told(KernelWindow(records=7))
    source = chosen(cupti=cupti)
    assert (source.name, source.reason) == ("told", "")
    assert source.take().records == 7
    source.close()
    assert cupti.calls == ["start fwd", "stop", "close"]


def test_else_none_with_the_reason() -> None:
    source = chosen(driver=False)
    assert (source.name, source.reason) == ("none", NO_DRIVER)
    assert type(source) is KernelSource


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


def test_the_environment_asks_for_cupti_and_gets_it() -> None:
    assert chosen({"HOLDFAST_KERNEL_SOURCE": "cupti"}, cupti=Told()).name == "told"


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


LOADED = """
import sys, holdfast.straggler
from holdfast.straggler.kernels.choose import choose
source = choose()
print(source.name, "|", source.reason, "|", type(source).__name__)
assert not {"torch", "numpy"} & sys.modules.keys()
"""

USED = """
for _ in range(2):
    source.start("fwd"); source.stop(); source.take()
import torch
source.start("fwd"); source.stop(); source.take()
assert not torch.cuda.is_initialized()
"""

NO_CUDA = """
from pathlib import Path
maps = Path("/proc/self/maps").read_text()
assert "libcuda.so" not in maps and "libcupti" not in maps, maps
source.start("fwd"); source.stop(); source.take(); source.close()
"""

DRIVER = """
#include <stdlib.h>
#include <unistd.h>
static int called(void) {
    static const char text[] = "the driver was called\\n";
    write(2, text, sizeof text - 1);
    _exit(9);
}
int cuInit(unsigned flags) { return called(); }
int cuDriverGetVersion(int *version) { return called(); }
int cuDeviceGetCount(int *count) { return called(); }
int cuGetProcAddress_v2(void) { return called(); }
"""


def python(code: str, **environ: str) -> str:
    """What a program prints; nothing may be on its error output."""
    environment = {name: value for name, value in os.environ.items() if name != "HOLDFAST_KERNEL_SOURCE"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=environment | environ,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """A folder with a libcuda.so.1 that ends the process at any call."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler for a stand-in of the driver's library")
    source = tmp_path / "driver.c"
    source.write_text(DRIVER)
    command = [compiler, "-w", "-shared", "-fPIC", str(source), "-o", str(tmp_path / "libcuda.so.1")]
    subprocess.run(command, check=True, timeout=60)
    return tmp_path


def test_a_machine_without_a_driver() -> None:
    if choosing._driver():
        pytest.skip("this machine has an NVIDIA driver")
    assert python(LOADED + NO_CUDA) == f"none | {NO_DRIVER} | KernelSource\n"


def test_a_driver_is_found_and_not_called_before_cuda_is_initialised(driver: Path) -> None:
    pytest.importorskip("torch")
    printed = python(LOADED + USED, LD_LIBRARY_PATH=str(driver))
    assert printed == f"none | {NOT_YET} | LaterSource\n"
