"""What this process loses to its host: counted for real where a test can make it lose, from given files elsewhere."""

from __future__ import annotations

import gc
import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.straggler.host import (
    GARBAGE,
    NO_CPU,
    STOLEN,
    THROTTLED,
    HostLosses,
    Reading,
    cpu_stat_paths,
    cpu_time,
    lost,
    run_time,
    throttled_seconds,
)

Open = Callable[..., HostLosses]


@pytest.fixture
def opened() -> Iterator[Open]:
    """Losses that are closed in the end."""
    made: list[HostLosses] = []

    def make(*given: Any) -> HostLosses:
        made.append(HostLosses(*given))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_pauses_are_counted_once(opened: Open) -> None:
    losses = opened()
    kept = [[number] for number in range(100_000)]
    losses.take()
    started = time.perf_counter()
    for _ in range(5):
        gc.collect()
    took = time.perf_counter() - started
    assert 0.5 * took < losses.take()[GARBAGE] < 1.2 * took
    assert len(kept) == 100_000
    gc.disable()
    try:
        assert losses.take()[GARBAGE] == 0.0 == losses.take()[GARBAGE]
    finally:
        gc.enable()


def test_collections_of_other_threads_count(opened: Open) -> None:
    losses = opened()
    losses.take()
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()
    assert losses.take()[GARBAGE] > 0


def test_closing_leaves_what_others_registered() -> None:
    def other(phase: str, info: dict[str, Any]) -> None:
        """The callback of another library."""

    before = list(gc.callbacks)
    gc.callbacks.append(other)
    try:
        first, second = HostLosses(), HostLosses()
        first.close()
        first.close()
        assert len(gc.callbacks) == len(before) + 2
        second.close()
        assert gc.callbacks == [*before, other]
    finally:
        gc.callbacks.remove(other)


def test_without_any_file_only_the_pauses_are_known(opened: Open, tmp_path: Path) -> None:
    taken = opened(tmp_path, tmp_path).take()
    assert {cause for cause, value in taken.items() if math.isnan(value)} == {NO_CPU, THROTTLED, STOLEN}


def host(folder: Path, waited: int, stolen: int, throttled: int) -> tuple[Path, Path]:
    """A /proc and a control group that say this; nanoseconds, ticks, microseconds."""
    proc, group = folder / "proc", folder / "cgroup"
    task = proc / "self" / "task" / str(threading.get_native_id())
    texts = {
        proc / "stat": f"cpu  {100 + stolen} 0 0 50 0 0 0 {stolen} 0 0\n",
        proc / "self" / "cgroup": "0::/pod/job\n",
        task / "schedstat": f"{10**9 + waited} {waited} 5\n",
        group / "pod" / "job" / "cpu.stat": "usage_usec 1\n",
        group / "pod" / "cpu.stat": f"usage_usec 1\nthrottled_usec {throttled}\n",
    }
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return proc, group


def test_what_the_files_say_is_the_difference_since_the_last_call(opened: Open, tmp_path: Path) -> None:
    losses = opened(*host(tmp_path, 1_000_000_000, 10, 2_000_000))
    host(tmp_path, 4_000_000_000, 40, 3_000_000)
    taken = losses.take()
    assert taken[NO_CPU] == pytest.approx(2.0)
    assert taken[THROTTLED] == pytest.approx(1.0)
    assert taken[STOLEN] > 0
    again = losses.take()
    assert (again[NO_CPU], again[THROTTLED]) == (0.0, 0.0)


def reading(
    moment: float, running: float, waiting: float, busy: int, stolen: int, *throttled: float
) -> Reading:
    return Reading(moment, running, waiting, busy, stolen, throttled)


def test_throttling_is_at_most_the_threads_wait() -> None:
    """A group of ten CPUs is throttled ten times as long as its threads wait."""
    found = lost(reading(0, 0, 0, 0, 0, 0.0), reading(10, 5, 3, 0, 0, 30.0))
    assert (found[THROTTLED], found[NO_CPU]) == (3.0, 0.0)
    found = lost(reading(0, 0, 0, 0, 0, 0.0, math.nan), reading(10, 5, 3, 0, 0, 1.0, math.nan))
    assert (found[THROTTLED], found[NO_CPU]) == (1.0, 2.0)


def test_stolen_time_is_the_share_of_a_busy_cpu() -> None:
    """One of many CPUs works, and is stolen for a third of the time."""
    found = lost(reading(0, 0, 0, 1000, 0), reading(9, 6, 0, 1600, 300))
    assert found[STOLEN] == pytest.approx(3.0)


def test_counters_that_go_back_lose_nothing() -> None:
    """A container that moved to another host, or a suspended machine."""
    found = lost(reading(0, 5, 5, 1000, 50, 9.0), reading(1, 6, 1, 10, 1, 2.0))
    assert (found[NO_CPU], found[THROTTLED]) == (0.0, 0.0)
    assert math.isnan(found[STOLEN])


def test_no_descriptor_is_kept(opened: Open) -> None:
    descriptors = Path("/proc/self/fd")
    losses = opened()
    before = len(list(descriptors.iterdir()))
    for _ in range(10):
        losses.take()
    assert len(list(descriptors.iterdir())) == before


STAT = "cpu  905834 94527 184265 1504249 2143 7 2074 337 11 0\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 5\n"
V2 = "usage_usec 10\nuser_usec 5\nnr_periods 4\nnr_throttled 2\nthrottled_usec 1500000\n"
V1 = "nr_periods 4\nnr_throttled 2\nthrottled_time 1500000000\n"


def test_cpus_are_busy_with_anything_but_idling() -> None:
    assert cpu_time(STAT) == (905834 + 94527 + 184265 + 7 + 2074, 337)


@pytest.mark.parametrize("text", [V1, V2])
def test_both_versions_of_control_groups_say_how_long_they_throttled(text: str) -> None:
    assert throttled_seconds(text) == 1.5


@pytest.mark.parametrize("text", ["", "\n", "1", "a b c", "-5 1 1", "1.5 2 3", "²³ 1 2", "\0\0"])
def test_texts_that_are_something_else_say_nothing(text: str) -> None:
    found = (*run_time(text), *cpu_time(text), throttled_seconds(text))
    assert all(map(math.isnan, found))
    assert cpu_stat_paths(text, "/x") == ()


@pytest.mark.parametrize(
    "text",
    [
        "cpu  1 2 3 4 5 6 7\n",
        "cpu  0 0 0 0 0 0 0 0 0 0\n",
        "cpu0 1 2 3 4 5 6 7 8\n",
        "cpu  1 2 3 4 5 6 7 x\n",
    ],
)
def test_cpu_times_of_an_old_kernel_or_a_sandbox_say_nothing(text: str) -> None:
    assert all(map(math.isnan, cpu_time(text)))


@given(st.text())
def test_no_text_raises(text: str) -> None:
    run_time(text), cpu_time(text), throttled_seconds(text), cpu_stat_paths(text, "/x")


def test_groups_of_both_versions_are_read() -> None:
    text = "12:name=systemd:/\n4:cpu,cpuacct:/a:b\n0::/pod\nbroken\n5:memory:relative\n"
    assert [path for path in cpu_stat_paths(text, "/x") if path.count("/") > 3] == [
        "/x/cpu,cpuacct/a:b/cpu.stat",
        "/x/cpu/a:b/cpu.stat",
    ]
    assert "/x/pod/cpu.stat" in cpu_stat_paths(text, "/x")


def test_a_path_never_leaves_the_root() -> None:
    assert all(path.startswith("/r/") and ".." not in path for path in cpu_stat_paths("0::/../../a", "/r"))
