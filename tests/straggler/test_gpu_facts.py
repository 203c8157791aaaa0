"""Facts of a GPU: the clause that a verdict says of them, and their reading by the real nvidia-ml-py from an NVML that
is a stand-in of the driver's library."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.straggler.gpu_facts import FIELDS, IDLE, UNKNOWN, Gpu, GpuFacts, identified, told, typical
from tests.straggler.kernels.conftest import build_nvml

HW_THERMAL, HW_SLOWDOWN, POWER_CAP = 0x40, 0x8, 0x4


def facts(**changes: float) -> tuple[float, ...]:
    """Those of a healthy GPU under load, but for these."""
    healthy = {
        "sm_clock": 1935.0,
        "max_sm_clock": 1980.0,
        "slowed_by": 0.0,
        "temperature": 62.0,
        "power": 650.0,
        "power_limit": 700.0,
        "corrected_ecc": 0.0,
        "uncorrected_ecc": 0.0,
        "remapped_rows": 0.0,
        "remapping": 0.0,
    }
    assert changes.keys() <= healthy.keys() == set(FIELDS)
    return tuple((healthy | changes).values())


def test_a_gpu_with_everything_wrong() -> None:
    sick = facts(
        sm_clock=1200, slowed_by=HW_THERMAL, temperature=88, power=412, corrected_ecc=3, uncorrected_ecc=1
    )
    assert told(sick, facts()) == (
        "its SM clock is 1,200 of 1,980 MHz (others 1,935), slowed by: HW thermal slowdown; 88 °C (others 62); "
        "412 of 700 W; 1 new uncorrected ECC error; 3 new corrected ECC errors"
    )


@pytest.mark.parametrize(
    ("changes", "others", "text"),
    [
        ({}, {}, ""),
        # Clocks.
        ({"sm_clock": 1900}, {}, ""),
        ({"sm_clock": 1700}, {}, "its SM clock is 1,700 of 1,980 MHz (others 1,935); 650 of 700 W"),
        ({"sm_clock": 1700}, {"sm_clock": 1710}, ""),
        ({"sm_clock": 1700, "max_sm_clock": math.nan}, {}, "its SM clock is 1,700 MHz (others 1,935); 650 of 700 W"),
        ({"sm_clock": 1700}, {"sm_clock": math.nan}, "its SM clock is 1,700 of 1,980 MHz; 650 of 700 W"),
        ({"sm_clock": 1850}, {"sm_clock": math.nan}, ""),
        ({"sm_clock": 345, "slowed_by": IDLE}, {}, ""),  # it had no work just then
        ({"sm_clock": 1700}, {"sm_clock": 345, "slowed_by": IDLE}, "its SM clock is 1,700 of 1,980 MHz; 650 of 700 W"),
        # Why they are low: what all have is no news, heat and hardware always are.
        ({"slowed_by": POWER_CAP}, {}, "its clocks are slowed by: SW power cap; 650 of 700 W"),
        ({"slowed_by": POWER_CAP}, {"slowed_by": POWER_CAP}, ""),
        (
            {"slowed_by": HW_THERMAL | HW_SLOWDOWN | POWER_CAP, "power": math.nan},
            {"slowed_by": HW_THERMAL | HW_SLOWDOWN | POWER_CAP},
            "its clocks are slowed by: HW slowdown, HW thermal slowdown",
        ),
        # Heat.
        ({"temperature": 85}, {"temperature": 84}, "its GPU: 85 °C"),
        ({"temperature": 75}, {}, "its GPU: 75 °C (others 62)"),
        ({"temperature": 71}, {}, ""),
        # Power.
        ({"power_limit": 500, "power": 498}, {}, "its GPU: 498 of 500 W (others' limit 700)"),
        ({"power_limit": 500, "power": math.nan}, {}, "its GPU: power limit 500 W (others' limit 700)"),
        ({"power": 699}, {}, ""),
        # Memory.
        ({"corrected_ecc": 1200}, {}, "its GPU: 1,200 new corrected ECC errors"),
        ({"remapped_rows": 1}, {}, "its GPU: 1 remapped memory row"),
        ({"remapped_rows": 2}, {"remapped_rows": 2}, ""),
        ({"remapped_rows": 2}, {"remapped_rows": math.nan}, "its GPU: 2 remapped memory rows"),
        ({"remapping": 1}, {}, "its GPU: row remapping waits for a GPU reset"),
        ({"remapping": 3}, {}, "its GPU: row remapping waits for a GPU reset; row remapping failed"),
    ],
)  # fmt: skip
def test_only_what_is_remarkable_is_told(
    changes: dict[str, float], others: dict[str, float], text: str
) -> None:
    assert told(facts(**changes), facts(**others)) == text


def test_nothing_known_is_nothing_told() -> None:
    assert told(UNKNOWN, UNKNOWN) == ""
    assert told(UNKNOWN, facts()) == ""
    assert told(facts(), UNKNOWN) == ""


def test_what_is_typical() -> None:
    assert typical([]) == pytest.approx(UNKNOWN, nan_ok=True)
    assert typical([facts(sm_clock=1900), UNKNOWN, facts(sm_clock=1950), facts(sm_clock=100)]) == facts(
        sm_clock=1900
    )
    # Bits have no median: those of more than half count.
    rows = [facts(slowed_by=POWER_CAP), facts(slowed_by=POWER_CAP | HW_THERMAL), facts(slowed_by=HW_SLOWDOWN)]
    assert typical(rows) == facts(slowed_by=POWER_CAP)
    assert typical([*rows, facts()]) == facts()


def test_which_gpu_it_is() -> None:
    torch = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0, uuid="8f0a-1")
    assert identified(torch, 0, None) == Gpu("00000000:3b:00.0", "8f0a-1", "0")
    assert identified(torch, 1, "4, 6") == Gpu("00000000:3b:00.0", "8f0a-1", "6")
    older = SimpleNamespace()
    assert identified(older, 1, "GPU-1,MIG-2") == Gpu("", "", "MIG-2")
    assert identified(older, 0, "") == Gpu("", "", "0")
    assert identified(older, 2, "4,6") == Gpu("", "", "")


def test_without_cuda_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    one = GpuFacts()
    assert one.take() is None
    one.close()
    assert "pynvml" not in sys.modules


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    one = GpuFacts(lambda: Gpu(visible="0"))
    assert one.take() is None
    assert one.reason == "nvidia-ml-py is not installed"


TAKES = """
import json, os, sys
from holdfast.straggler.gpu_facts import Gpu, GpuFacts
assert "pynvml" not in sys.modules
one = GpuFacts(lambda: Gpu(**json.loads(os.environ["GPU"])), patience=30)
libc = __import__("ctypes").CDLL(None)
for corrected, uncorrected in ((5, 0), (8, 1), (2, 1)):
    libc.setenv(b"NVML_CORRECTED", str(corrected).encode(), 1)
    libc.setenv(b"NVML_UNCORRECTED", str(uncorrected).encode(), 1)
    print(json.dumps([one.take(), one.reason]))
one.close()
"""

READ = {
    "sm_clock": 1200,
    "max_sm_clock": 1980,
    "slowed_by": HW_THERMAL,
    "temperature": 88,
    "power": 412.345,
    "power_limit": 700,
    "corrected_ecc": math.nan,
    "uncorrected_ecc": math.nan,
    "remapped_rows": 3,
    "remapping": 1,
}
"""What the stand-in makes of the first window."""

CALLS = {
    "nvmlDeviceGetClockInfo": ["sm_clock"],
    "nvmlDeviceGetTotalEccErrors": ["corrected_ecc", "uncorrected_ecc"],
    "nvmlDeviceGetRemappedRows": ["remapped_rows", "remapping"],
}
Windows = list[tuple[list[float] | None, str]]


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a libnvidia-ml.so.1."""
    if find_spec("pynvml") is None:
        pytest.skip("needs nvidia-ml-py")
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc for a stand-in of NVML")
    folder = tmp_path_factory.mktemp("nvml")
    build_nvml(folder)
    return folder


def ran(nvml: Path, code: str, warnings: str = "error", **environ: str) -> tuple[str, str]:
    """What a process that uses this NVML prints."""
    done = subprocess.run(
        [sys.executable, "-W", warnings, "-c", code],
        env=os.environ | {"LD_LIBRARY_PATH": str(nvml), "NVML_INDEX": "0"} | environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def windows(nvml: Path, gpu: dict[str, str], **environ: str) -> tuple[Windows, str]:
    """Three windows, and the error output."""
    printed, output = ran(nvml, TAKES, GPU=json.dumps(gpu), **environ)
    return [json.loads(line) for line in printed.splitlines()], output


def same(found: list[float] | None, expected: dict[str, float]) -> None:
    assert found is not None
    assert dict(zip(FIELDS, found, strict=True)) == pytest.approx(expected, nan_ok=True)


def test_three_windows(nvml: Path) -> None:
    """Errors are those of the window, also when their counter began again."""
    (first, second, third), output = windows(nvml, {"visible": "0"})
    same(first[0], READ)
    same(second[0], READ | {"corrected_ecc": 3, "uncorrected_ecc": 1})
    same(third[0], READ | {"corrected_ecc": 2, "uncorrected_ecc": 0})
    assert [reason for _, reason in (first, second, third)] == ["", "", ""]
    assert output == "shut down\n"


@pytest.mark.parametrize(
    ("gpu", "environ"),
    [
        ({"pci": "00000000:3b:00.0", "uuid": "1", "visible": "7"}, {"NVML_PCI": "00000000:3B:00.0"}),
        ({"pci": "00000000:3b:00.0", "uuid": "8f-1"}, {"NVML_UUID": "GPU-8f-1"}),
        ({"uuid": "GPU-8f-1"}, {"NVML_UUID": "GPU-8f-1"}),
        ({"uuid": "8f-1"}, {"NVML_PART": "MIG-8f-1"}),
        ({"visible": "GPU-8f-1"}, {"NVML_UUID": "GPU-8f-1"}),
        ({"visible": "MIG-8f-1"}, {"NVML_PART": "MIG-8f-1"}),
        ({"uuid": "other", "visible": "3"}, {"NVML_INDEX": "3"}),
    ],
)
def test_the_gpu_is_found(nvml: Path, gpu: dict[str, str], environ: dict[str, str]) -> None:
    found, _ = windows(nvml, gpu, **environ)
    same(found[0][0], READ)


@pytest.mark.parametrize(
    ("gpu", "environ", "reason"),
    [
        ({}, {}, "NVML: torch does not say which GPU it uses"),
        ({"pci": "00000000:ff:00.0", "uuid": "other", "visible": "9"}, {}, "NVML: Not Found"),
        ({"visible": "0"}, {"NVML_INIT": "6"}, "NVML: Not Found"),
    ],
)
def test_a_gpu_or_nvml_that_is_not_there(
    nvml: Path, gpu: dict[str, str], environ: dict[str, str], reason: str
) -> None:
    found, output = windows(nvml, gpu, **environ)
    assert found == [[None, reason]] * 3
    assert "NVML_INIT" not in environ or output == ""


@pytest.mark.parametrize("call", CALLS)
def test_what_a_gpu_does_not_know_is_nan(nvml: Path, call: str) -> None:
    found, _ = windows(nvml, {"visible": "0"}, NVML_NOT_SUPPORTED=call)
    unknown = dict.fromkeys(CALLS[call], math.nan)
    same(found[0][0], READ | unknown)
    same(found[1][0], READ | {"corrected_ecc": 3, "uncorrected_ecc": 1} | unknown)


def test_reasons_of_an_older_driver(nvml: Path) -> None:
    refused = "nvmlDeviceGetCurrentClocksEventReasons"
    found, _ = windows(nvml, {"visible": "0"}, NVML_NOT_SUPPORTED=refused)
    same(found[0][0], READ | {"slowed_by": 0x20})


def test_no_library(nvml: Path, tmp_path: Path) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has an NVIDIA driver")
    found, _ = windows(tmp_path, {"visible": "0"})
    assert found == [[None, "NVML: NVML Shared Library Not Found"]] * 3


SLOW = """
import json, threading, time
from holdfast.straggler.gpu_facts import MOST_LATE, Gpu, GpuFacts
one = GpuFacts(lambda: Gpu(visible="0"))
took, readings = [], []
for _ in range(MOST_LATE + 1):
    started = time.perf_counter()
    assert one.take() is None
    took.append(time.perf_counter() - started)
    threads = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    assert one.take() is None  # and none more is started
    assert threading.active_count() <= 1 + len(threads)
    assert all(thread.daemon for thread in threads)
    readings.append(len(threads))
    for thread in threads:
        thread.join(30)
print(json.dumps([took, readings]))
"""


def test_a_driver_that_hangs_costs_little_and_is_not_asked_for_ever(nvml: Path) -> None:
    printed, output = ran(nvml, SLOW, "default", NVML_HANGS="nvmlDeviceGetClockInfo")
    took, readings = json.loads(printed)
    assert min(took) < 1.2  # the call itself takes 1.5 s, each time
    assert readings == [1, 1, 1, 0]
    assert "NVML did not answer within 50 ms, 3 times: verdicts go without clocks and temperatures" in output


CLOSED = """
import os, threading, time
from holdfast.straggler.gpu_facts import Gpu, GpuFacts
one = GpuFacts(lambda: Gpu(visible="0"), patience=30)
assert one.take() is not None
one._patience = 0.05
child = os.fork()
started = time.perf_counter()
one.close()
took = time.perf_counter() - started
if child == 0:
    os._exit(threading.active_count() - 1)  # nothing was even asked
assert took < 1.2, took  # the call itself takes 1.5 s
assert os.waitpid(child, 0)[1] == 0
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        assert thread.daemon
        thread.join(30)
"""


def test_the_end_does_not_wait_for_a_driver_that_hangs(nvml: Path) -> None:
    assert ran(nvml, CLOSED, "ignore", NVML_HANGS="nvmlShutdown") == ("", "shut down\n")
