"""Which source of kernel times is used, when that is decided, and that nothing is touched where there is no GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

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
