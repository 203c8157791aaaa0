"""GPUs: what facts mean, their reading from a stand-in of NVML, and what the launcher makes of them."""

from __future__ import annotations

import queue
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.fault_tolerance.config import FaultToleranceConfig
from holdfast.fault_tolerance.launcher.control.messages import Health, Suspected
from holdfast.fault_tolerance.launcher.node_health import NodeHealth
from holdfast.health import ABSENT, GOOD, SICK, WARNING, Finding
from holdfast.health.checks import Checks, Wanted
from holdfast.health.gpus import Reader, judged
from holdfast.health.kernel_log import KernelLog
from tests.processes import wait_until
from tests.straggler.kernels.conftest import build_nvml

Facts = Callable[..., None]


def gpu(index: int = 0, **changes: Any) -> dict[str, Any]:
    found = {"index": index, "pci": f"00000000:{0x3B + index:02X}:00.0", "name": "H100", "links": [0, 1, 2]}
    found |= {"remap_failed": False, "remap_pending": False}
    return found | dict.fromkeys(("uncorrected", "retire_pending", "slowed"), 0) | changes


START = [gpu(0), gpu(1)]


def found(
    *gpus: dict[str, Any], start: Any = START, xids: tuple[str, ...] = (), before: tuple[str, ...] = ()
) -> list[Finding]:
    return judged(gpus, start, xids, before, "")


def test_healthy_gpus() -> None:
    assert found(*START) == [Finding("GPUs", GOOD, "2 (H100)")]
    assert found(*START[:1], gpu(1, links=None))[0].verdict == GOOD  # what is unknown now is not down
    assert found(*START, start=None) == [Finding("GPUs", GOOD, "2 (H100)")]
    assert found() == [Finding("GPUs", SICK, "0 GPUs, and 2 at the start", is_hardware=True)]
    assert found(start=None) == [Finding("GPUs", ABSENT, "none")]


@pytest.mark.parametrize(
    ("start", "change", "text"),
    [
        (START, {"uncorrected": 2}, " has had 2 uncorrectable memory errors since the start"),
        (START, {"remap_failed": True}, " could not remap a broken row of its memory and must be replaced"),
        (START, {"links": [0]}, ": NVLink 1, 2 is down"),
        (START, {"lost": "GPU is lost"}, " cannot be asked: GPU is lost"),
        (None, {"uncorrected": 2}, " has had 2 uncorrectable memory errors since its driver was loaded"),
        (None, {"remap_pending": True}, " has remapped rows of memory that wait for a reset of the GPU"),
        (None, {"retire_pending": 1}, " has retired pages of memory that wait for a reset of the GPU"),
        (None, {"links": [0]}, " has 1 NVLinks, and others have 3"),
    ],
)
def test_hardware_is_sick_and_what_was_so_before_the_job_a_warning(
    start: Any, change: dict[str, Any], text: str
) -> None:
    (finding,) = found(gpu(0), gpu(1, **change), start=start)
    verdict = SICK if start else WARNING
    assert (finding.verdict, finding.text) == (verdict, f"GPU 1 (H100){text}")
    assert finding.is_hardware == (start is START)


@pytest.mark.parametrize(("bit", "why"), [(0x40, "too hot"), (0x80, "power brake")])
def test_a_brake_is_a_warning(bit: int, why: str) -> None:
    (finding,) = found(gpu(slowed=bit), start=None)
    assert finding.verdict == WARNING and why in finding.text


def test_unknown_facts_are_named() -> None:
    (finding,) = judged([gpu(links=None, uncorrected=None)], None, (), (), "/dev/kmsg: no")
    assert finding.verdict == GOOD
    assert finding.text == "1 (H100); unknown: memory errors, NVLink; Xid errors are not seen (/dev/kmsg: no)"


def test_xids_of_hardware_count_and_those_of_programs_do_not() -> None:
    line = "NVRM: Xid (PCI:0000:3c:00): {}, pid=71, name=python"
    (finding,) = found(*START, xids=(line.format(79), line.format(31), line.format(79)))
    assert finding.text == "GPU 1: Xid 79, the GPU has fallen off the bus (kernel log)"
    assert finding.is_hardware
    (finding,) = found(*START, xids=(line.format(79),), before=(line.format(79),))
    assert finding.verdict == WARNING and finding.text.endswith("(kernel log), before the job began")
    other = "NVRM: Xid (PCI:0000:aa:00): 79, pid=71"
    assert found(*START, xids=(other,))[0].verdict == GOOD  # of another container
    (finding,) = found({"index": 0, "lost": "GPU is lost"}, start=None, xids=(other,))[1:]
    assert finding.text.startswith("the GPU at 0000:aa:00: Xid 79")


def test_the_kernels_log_is_read_from_the_last_load_of_the_driver_on(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader.__new__(Reader)
    reader._log = KernelLog("/dev/null")
    records = iter([b"4,1,1,-;NVRM: Xid (PCI:0000:3b:00): 79\n", b"4,2,2,-;NVRM: loading NVIDIA UNIX x86_64\n",
                    b"4,3,3,-;NVRM: Xid (PCI:0000:3b:00): 48\n x=y\n"])  # fmt: skip
    monkeypatch.setattr("holdfast.health.kernel_log.os.read", lambda *_: next(records, b""))
    assert reader.xids() == (["NVRM: Xid (PCI:0000:3b:00): 48"], "")
    assert reader.xids() == ([], "")
    reader._log.close()


# -- through the process that asks NVML ---------------------------------------------------------------------------


HEALTHY = {"SLOWED": 0, "REMAP_PENDING": 0}


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


@pytest.fixture
def checks(facts: Facts) -> Iterator[Checks]:
    checks = Checks(Wanted(driver="/dev/nvidiactl", seconds=20.0))
    yield checks
    checks.close()


def gpus_of(checks: Checks, **how: bool) -> list[Finding]:
    return [each for each in checks.run(**how) if each.check == "GPUs"]


def test_a_gpu_that_gets_sick_is_found_and_stays_found(checks: Checks, facts: Facts) -> None:
    (healthy,) = gpus_of(checks)
    assert healthy.verdict == GOOD and healthy.text.startswith("1 (Stand-in)")
    for changes, text in [
        ({"UNCORRECTED": 3}, "3 uncorrectable memory errors since the start"),
        ({"REMAP_FAILED": 1}, "must be replaced"),
        ({"LINKS": 1}, "NVLink 1 is down"),
        ({"COUNT": 0}, "0 GPUs, and 1 at the start"),
    ]:
        facts(**changes)
        for _ in range(2):
            (sick,) = gpus_of(checks)
            assert sick.verdict == SICK and text in sick.text
    facts()
    assert gpus_of(checks, trains=True)[0].verdict == GOOD


def test_cluster_and_holders(checks: Checks, facts: Facts) -> None:
    assert checks.gpus.ask("cluster", 20.0) == [""]
    facts(CLUSTER=0xAB, HOLDER=4711, HELD=300)
    assert checks.gpus.ask("cluster", 20.0) == ["ab" * 16]
    assert checks.gpus.ask("holders", 20.0) == [[[0, 4711, 300]]]


def test_a_driver_that_hangs_is_a_finding_and_delays_nothing(
    facts: Facts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may need long to be opened; what does not answer then hangs, until it answers."""
    monkeypatch.setenv("NVML_HANGS", "nvmlDeviceGetCount_v2")
    monkeypatch.setattr("holdfast.health.checks.OPENS", 0.4)
    checks = Checks(Wanted(driver="/dev/nvidiactl", seconds=0.1))
    hangs = "the NVIDIA driver: no answer within 0.4 s"
    (finding,) = gpus_of(checks)
    assert (finding.verdict, finding.text) in [
        (WARNING, "not checked: no answer within 0.1 s"),
        (SICK, hangs),  # where this had no core
    ]
    found = wait_until(lambda: [each for each in gpus_of(checks) if each.verdict == SICK], what="it hangs")
    assert found[0].text == hangs
    assert gpus_of(checks) == found
    checks.close()


def test_without_the_library_or_the_driver_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    checks = Checks(Wanted(driver="/dev/nvidiactl", seconds=20.0))
    (finding,) = gpus_of(checks)
    checks.close()
    assert finding.verdict in (ABSENT, GOOD)  # this machine may have the library
    (finding,) = gpus_of(Checks(Wanted()))
    assert (finding.verdict, finding.text) == (ABSENT, "there is no NVIDIA driver")


# -- the launcher's part: GPU memory of ranks that ended, and what is reported


class Records(list[dict[str, Any]]):
    def record(self, kind: str, **fields: Any) -> None:
        self.append({"kind": kind, **fields})


class Made:
    """A node's health with a stand-in of NVML, and what it posts and records."""

    def __init__(self, **changes: Any) -> None:
        self.posted: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.records = Records()
        config = FaultToleranceConfig(**{"gpu_memory_reclaim_timeout": 60, **changes})
        wanted = Wanted(driver="/dev/nvidiactl", card_states=None, node="n1", seconds=20.0)
        self.health = NodeHealth(wanted, config, self.records, self.posted.put)  # type: ignore[arg-type]


@pytest.fixture
def made(facts: Facts) -> Iterator[Made]:
    made = Made()
    yield made
    made.health.close()


def test_a_restart_waits_for_the_memory_of_its_own_ranks(made: Made, facts: Facts) -> None:
    facts(HOLDER=4711, HELD=4000)
    assert made.health.await_memory({4711}, lambda: made.posted.put("go"))
    with pytest.raises(queue.Empty):
        made.posted.get(timeout=0.5)
    facts()
    assert made.posted.get(timeout=60) == "go"


@pytest.mark.parametrize("held", [{"HOLDER": 12, "HELD": 4000}, {"HOLDER": 4711, "HELD": 500}])
def test_it_waits_neither_for_others_nor_for_little(made: Made, facts: Facts, held: dict[str, int]) -> None:
    facts(**held)
    assert made.health.await_memory({4711}, lambda: made.posted.put("go"))
    assert made.posted.get(timeout=60) == "go"
    assert not made.health.await_memory((), lambda: None)


def test_it_names_who_holds_the_memory_and_goes_on(facts: Facts) -> None:
    made = Made(gpu_memory_reclaim_timeout=0.2)
    facts(HOLDER=4711, HELD=4000)
    assert made.health.await_memory({4711}, lambda: made.posted.put("go"))
    assert made.posted.get(timeout=60) == "go"
    (event,) = [each for each in made.records if each["kind"] == "gpu_memory_held"]
    assert event["text"].endswith("process 4711 holds 4000 MiB of GPU 0")
    made.health.close()


def test_a_stop_signal_ends_the_wait(made: Made, facts: Facts) -> None:
    facts(HOLDER=4711, HELD=4000)
    made.health.await_memory({4711}, lambda: made.posted.put("go"))
    made.health.stop_waiting()
    assert made.posted.get(timeout=60) == "go"


def test_hardware_is_told_once_and_makes_the_node_suspect(made: Made, facts: Facts) -> None:
    made.health.check(0)
    assert made.posted.get(timeout=60) == Health(0)
    facts(REMAP_FAILED=1)
    for cycle in 1, 2:
        made.health.check(cycle)
        found = [made.posted.get(timeout=60)]
        if found == [Suspected()]:
            found.append(made.posted.get(timeout=60))
        assert isinstance(found[-1], Health) and "must be replaced" in found[-1].sick
    kinds = [each["kind"] for each in made.records]
    assert kinds == ["health", "node_suspected"] and made.records[0]["hardware"]
    assert "must be replaced." in made.health.notes()[0]


def test_a_check_beside_training_tells_what_is_new(made: Made, facts: Facts) -> None:
    made.health.check(0)
    made.posted.get(timeout=60)
    facts(LINKS=1)
    until = time.monotonic() + 60
    while made.posted.empty() and time.monotonic() < until:
        made.health.every_second(0, trains=True)
    found = [made.posted.get(timeout=60), made.posted.get(timeout=60)]
    assert found == [Suspected(), Health(0, "GPUs: GPU 0 (Stand-in): NVLink 1 is down")]
