"""From texts of the kernel and of programs to facts: boards, system calls, locks, mounts, core dumps, py-spy, GPUs."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.fault_tolerance.board.values import BoardEvent, Identity, OpenSection, Snapshot
from holdfast.incidents.capture import host, py_spy
from holdfast.incidents.capture.procfs import network_mounts, on_network
from holdfast.incidents.capture.rank_probe import board_facts
from holdfast.incidents.capture.waiting_on import NAMES, address, call, holder
from holdfast.incidents.evidence import Frame, NodeFaultKind
from tests.boards import SECOND, snapshot

TIMES = st.integers(-(1 << 62), 1 << 62)


def board(**changes: Any) -> Snapshot:
    """Of a rank that started at second 100."""
    return snapshot(**{"identity": Identity(7, 1, 0, 0, 0, 100 * SECOND), "connected": True, **changes})


def test_a_board_as_facts() -> None:
    last = 198 * SECOND
    events = [BoardEvent("start", 130 * SECOND, "old", 0), BoardEvent("step", 195 * SECOND, "", 12)]
    events.append(BoardEvent("start", last, "step", 0))
    sections = (OpenSection("step", last),)
    now = board(heartbeat_count=4, step=12, open_sections=sections, last_activity_ns=last, checkpoints=3)
    found = board_facts(now, events, 200 * SECOND, board(heartbeat_count=4, step=11))
    assert (found.age, found.silent, found.step, found.checkpoints) == (100.0, 2.0, 12, 3)
    assert [(each.name, each.seconds) for each in found.sections] == [("step", 2.0)]
    signs = [(each.kind, each.ago, each.value) for each in found.events]
    assert signs == [("step", 5.0, 12), ("start", 2.0, 0)]
    assert found.moved and found.rhythm == 3.0
    assert not board_facts(now, events, 200 * SECOND, now).moved
    assert not board_facts(now, events, 200 * SECOND).moved


def test_a_rank_that_has_not_spoken_is_silent_since_its_start() -> None:
    assert board_facts(board(), [], 130 * SECOND).silent == 30.0


@given(active=TIMES, started=TIMES, since=TIMES, now=TIMES)
def test_no_duration_is_negative_whatever_a_rank_scribbles(
    active: int, started: int, since: int, now: int
) -> None:
    who = Identity(7, 1, 0, 0, 0, started)
    odd = board(identity=who, open_sections=(OpenSection("odd", since),), last_activity_ns=active)
    found = board_facts(odd, [BoardEvent("mark", since, "odd", 1)], now)
    assert found.age >= 0 and found.silent >= 0 and found.sections[0].seconds >= 0
    assert all(0 <= each.ago <= 60 for each in found.events)


def test_system_calls_by_name() -> None:
    name, arguments = call("0 0x3 0x7f94 0x20000 0x0 0x0 0x0 0x7ffd 0x7f94\n", "x86_64")
    assert (name, arguments[0], len(arguments)) == ("read", 3, 6)
    assert call("98 0x7f94 0x80 0x0 0x0 0x0 0x0 0x7ffd 0x7f94", "aarch64")[0] == "futex"
    assert call("4000 0x3 0x0 0x0 0x0 0x0 0x0 0x0 0x0", "x86_64")[0] == "number 4000"
    assert call("0 0x3 0x0 0x0 0x0 0x0 0x0 0x0 0x0", "riscv64")[0] == "number 0"
    for text in ("running", "-1 0x7ffd 0x7f94", ""):
        assert call(text, "x86_64") == ("", ())
    assert all(len(set(names.values())) == len(names) for names in NAMES.values())


@given(st.text())
def test_no_text_makes_them_raise(text: str) -> None:
    call(text, "x86_64")
    holder(text, 1)
    on_network([text], network_mounts(text))
    host.killed_for_memory((text,))
    host.gpu_faults(text)
    host.hardware_faults((text,))
    py_spy.parsed(text, 1)
    assert py_spy.why(text)


def test_addresses_of_connections() -> None:
    assert address("0100007F:733C") == "127.0.0.1:29500"
    assert address("0000000000000000FFFF00000100007F:0050") == "[::ffff:127.0.0.1]:80"


def test_files_on_network_filesystems() -> None:
    mounts = network_mounts(
        "22 1 254:0 / / rw - ext4 /dev/vda rw\n"
        "23 22 0:50 / /data\\040sets rw shared:7 - nfs4 server:/data rw\n"
        "24 23 0:51 / /data\\040sets/local rw - tmpfs tmpfs rw\n"
        "25 22 0:52 / /s3 rw - fuse.s3fs s3fs rw\n"
        "26 22 0:53 / /ctl rw - fusectl fusectl rw\n"
        "garbage\n"
    )
    paths = [
        *["/data sets/part-1"] * 2,
        "/data sets/local/x",
        "/data setsx",
        "/s3",
        "/ctl/x",
        "pipe:[12]",
        "",
    ]
    assert on_network(paths, mounts) == ("/data sets/part-1 (nfs4)", "/s3 (fuse.s3fs)")
    assert on_network(["/data sets/a"], {"/": "nfs"}) == ("/data sets/a (nfs)",)
    assert len(on_network([f"/s3/{number}" for number in range(40)], mounts)) == 16


SYSTEMD = "/usr/lib/systemd/systemd-coredump"


@pytest.mark.parametrize(
    ("pattern", "limit", "number", "where"),
    [
        ("core.%p", -1, signal.SIGSEGV, "/work/core.71"),
        ("core", -1, signal.SIGSEGV, "/work/core"),
        ("core", 0, signal.SIGSEGV, ""),
        ("core", -1, signal.SIGKILL, ""),
        ("/cores/%e-%p-%t-%s%%%", -1, signal.SIGABRT, "/cores/python-71-*-6%"),
        (f"|{SYSTEMD} %P %u", 0, signal.SIGSEGV, f"piped to {SYSTEMD}: coredumpctl info 71"),
        ("|/usr/share/apport/apport %p", -1, signal.SIGBUS, "piped to /usr/share/apport/apport"),
        ("|", -1, signal.SIGBUS, "piped to a program"),
    ],
)
def test_where_a_core_dump_goes(pattern: str, limit: int, number: int, where: str) -> None:
    assert host.core_dump_path(pattern, number, 71, limit=limit, folder="/work") == where


def test_whom_the_kernel_killed_for_memory() -> None:
    lines = (
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python,pid=71,uid=0",
        "Memory cgroup out of memory: Killed process 71 (python) total-vm:1kB, anon-rss:1kB",
        "Out of memory: Killed process 72 (pt_main_thread) total-vm:1kB",
        "Killed process 73 (a b) total-vm:1kB",
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=71, GPU has fallen off the bus.",
        "NVRM: Xid (PCI:0000:3b:00): 31, pid=72, MMU Fault: ENGINE GRAPHICS faulted @ 0x7f_00000000",
    )
    assert host.killed_for_memory(lines) == {
        71: "Memory cgroup out of memory: Killed process 71 (python)",
        72: "Out of memory: Killed process 72 (pt_main_thread)",
        73: "Killed process 73 (a b)",
    }
    found = [(each.kind, each.pid) for each in host.hardware_faults(lines)]
    assert found == [(NodeFaultKind.GPU, 71), (NodeFaultKind.GPU_ACCESS, 72)]


@pytest.mark.parametrize(
    ("line", "is_fault"),
    [
        ("mce: [Hardware Error]: Machine check events logged", False),
        ("{1}[Hardware Error]: It has been corrected by h/w and requires no further action", False),
        ("{1}[Hardware Error]: event severity: corrected", False),
        ("[Hardware Error]: Corrected error, no action required.", False),
        ("[Hardware Error]: CPU:2 (19:1:1) MC17_STATUS[Over|CE|MiscV|AddrV|-|-|SyndV|CECC|-|-|-]", False),
        ("NVRM: Xid (PCI:0000:3b:00): 63, pid=71, Row Remapper: new row marked for remapping", False),
        ("mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 6: be00000000800400", True),
        ("{2}[Hardware Error]: event severity: fatal", True),
        ("{2}[Hardware Error]: event severity: recoverable", True),
        ("mce: Uncorrected hardware memory error in user-access at 3f2a1c0", True),
        ("pcieport 0000:00:01.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer", True),
    ],
)
def test_only_what_was_not_corrected_makes_a_node_suspect(line: str, is_fault: bool) -> None:
    kinds = {each.kind for each in host.hardware_faults((line,))}
    assert kinds == ({NodeFaultKind.HARDWARE} if is_fault else set())


def test_stacks_of_py_spy() -> None:
    frame = {"name": "fit", "filename": "/job/train.py", "line": 12, "module": None}
    native = {"name": "poll", "filename": "libc.so.6", "line": 0, "module": "/lib/libc.so.6"}
    told = [
        {"thread_name": None, "os_thread_id": 72, "owns_gil": None, "frames": []},
        {"thread_name": "MainThread", "os_thread_id": 71, "owns_gil": True, "frames": [native, frame]},
    ]
    threads, why_not = py_spy.parsed(json.dumps(told), 71)
    assert why_not == "" and [each.name for each in threads] == ["MainThread", "thread 72"]
    main, other = threads
    assert main.main and main.holds_gil and not other.main and other.holds_gil is None
    assert main.frames == (Frame("poll", "libc.so.6", 0, native=True), Frame("fit", "/job/train.py", 12))
    assert py_spy.parsed("[]", 71) == ((), "py-spy found no thread")
    assert py_spy.parsed("[{}]", 71)[0] == ()


def test_why_py_spy_told_nothing() -> None:
    refused, why = "Permission Denied: Try running again with elevated permissions", py_spy.why
    assert why(refused, "0") == "py-spy may not read the process's memory"
    assert why(refused, "1") == f"{why(refused, '0')} (kernel.yama.ptrace_scope is 1)"
    assert "finds no Python" in why("Error: Failed to find python version from target process\n\nStack")
    assert py_spy.why("Error: something else\nmore") == "py-spy: something else"


def test_gpus_that_stand_out() -> None:
    found = host.gpu_faults(
        "0, NVIDIA H100, 0, No, Not Active, Not Active, Not Active, 41\n"
        "1, NVIDIA H100, 3, Yes, Active, Not Active, [N/A], 91\n"
        "2, NVIDIA H100, [N/A], [N/A], Not Active, Active, Not Active, 60\n"
        "No devices were found\n"
    )
    kinds = [NodeFaultKind.GPU_BEFORE, NodeFaultKind.GPU, NodeFaultKind.SLOW_GPU, NodeFaultKind.SLOW_GPU]
    assert [each.kind for each in found] == kinds
    assert tuple(each.text for each in found) == (
        "GPU 1 (NVIDIA H100) has had 3 uncorrectable memory errors since its driver was loaded",
        "GPU 1 (NVIDIA H100) could not remap a broken row of its memory and must be replaced",
        "GPU 1 (NVIDIA H100) runs slower because it is too hot (hardware); it has 91 degrees",
        "GPU 2 (NVIDIA H100) runs slower because the power supply asks it to (power brake); it has 60 degrees",
    )
