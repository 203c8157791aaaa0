"""Texts of the kernel, as they are and as they should not be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.straggler.host import (
    CpuTime,
    RunTime,
    cpu_stat_paths,
    cpu_time,
    disk_ticks,
    run_time,
    throttled_seconds,
)

STAT = "cpu  905834 94527 184265 1504249 2143 7 2074 337 11 0\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 5\n"
THREAD = "25726 (pt) main (x)) R 1 2 3 0 -1 4194304 101 " + " ".join(str(n) for n in range(11, 53))
V2 = "usage_usec 10\nuser_usec 5\nnr_periods 4\nnr_throttled 2\nthrottled_usec 1500000\n"
V1 = "nr_periods 4\nnr_throttled 2\nthrottled_time 1500000000\n"


def test_a_threads_run_time_is_in_seconds() -> None:
    assert run_time("2000000000 500000000 17\n") == RunTime(2.0, 0.5)


def test_cpus_are_busy_with_anything_but_idling() -> None:
    assert cpu_time(STAT) == CpuTime(905834 + 94527 + 184265 + 7 + 2074, 337)


@pytest.mark.parametrize("text", [V1, V2])
def test_both_versions_of_control_groups_say_how_long_they_throttled(text: str) -> None:
    assert throttled_seconds(text) == 1.5


def test_a_threads_name_may_contain_anything() -> None:
    assert disk_ticks(THREAD) == 42


@pytest.mark.parametrize("text", ["", "\n", "1", "a b c", "-5 1 1", "1.5 2 3", "²³ 1 2", "\0\0"])
def test_texts_that_are_something_else_say_nothing(text: str) -> None:
    assert run_time(text) is None
    assert cpu_time(text) is None
    assert throttled_seconds(text) is None
    assert disk_ticks(text) is None
    assert cpu_stat_paths(text) == ()


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
    assert cpu_time(text) is None


def test_a_group_without_a_limit_says_nothing() -> None:
    assert throttled_seconds("usage_usec 10\nuser_usec 5\nsystem_usec 5\n") is None
    assert throttled_seconds("throttled_usec many\n") is None


@given(st.text())
def test_no_text_raises(text: str) -> None:
    run_time(text), cpu_time(text), throttled_seconds(text), disk_ticks(text), cpu_stat_paths(text)


def test_groups_of_both_versions_are_read() -> None:
    text = "12:name=systemd:/\n4:cpu,cpuacct:/a:b\n0::/pod\nbroken\n5:memory:relative\n"
    assert [path for path in cpu_stat_paths(text, "/x") if path.count("/") > 3] == [
        "/x/cpu,cpuacct/a:b/cpu.stat",
        "/x/cpu/a:b/cpu.stat",
    ]
    assert "/x/pod/cpu.stat" in cpu_stat_paths(text, "/x")


def test_the_own_group_comes_first_and_those_above_follow() -> None:
    assert cpu_stat_paths("0::/pod/one") == (
        "/sys/fs/cgroup/pod/one/cpu.stat",
        "/sys/fs/cgroup/pod/cpu.stat",
        "/sys/fs/cgroup/cpu.stat",
    )
    assert cpu_stat_paths("4:cpu,cpuacct:/a\n5:memory:/b", "/x") == (
        "/x/cpu,cpuacct/a/cpu.stat",
        "/x/cpu/a/cpu.stat",
        "/x/cpu,cpuacct/cpu.stat",
        "/x/cpu/cpu.stat",
    )


def test_a_path_never_leaves_the_root() -> None:
    assert all(path.startswith("/r/") and ".." not in path for path in cpu_stat_paths("0::/../../a", "/r"))
