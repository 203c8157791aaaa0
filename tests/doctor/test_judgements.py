"""Network, kernel, clock, leftovers and folders, as values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.doctor.finding import NOTE, OK, PROBLEM
from holdfast.doctor.judgements import clock, folders, kernel, leftovers, network
from holdfast.doctor.judgements.clock import Clock
from holdfast.doctor.judgements.folders import Folder
from holdfast.doctor.judgements.kernel import NEEDED, Ptrace
from holdfast.doctor.judgements.leftovers import Orphan, Runs
from holdfast.doctor.judgements.network import Name
from holdfast.doctor.quantity import GIB, MIB

NOW = 2_000_000_000.0
WELL = Clock(now=NOW, synchronised=True, newest_file=NOW - 1000, since_boot=86400 * 3)


@pytest.mark.parametrize(
    ("found", "verdict", "told"),
    [
        (WELL, OK, "synchronised, 3 days since boot"),
        (replace(WELL, synchronised=None), OK, "cannot be told"),
        (replace(WELL, synchronised=False), NOTE, "not synchronised"),
        (replace(WELL, newest_file=NOW + 7200), PROBLEM, "2 hours behind the time at which Holdfast was"),
        (replace(WELL, jumped=-3.0), PROBLEM, "set by -3.00 s while this was looked at"),
        (replace(WELL, since_journal=100.0, jumped_since=0.9), OK, ""),
        (replace(WELL, since_journal=100.0, jumped_since=-5.0), NOTE, "set by -5.0 s since the last job"),
        # Slewed by NTP: half a thousandth.
        (replace(WELL, since_journal=86400.0, jumped_since=40.0), OK, ""),
        # The monotonic clock stands still while a machine sleeps.
        (replace(WELL, since_journal=100.0, jumped_since=50.0, suspended=50.0), OK, ""),
    ],
)
def test_clock(found: Clock, verdict: str, told: str) -> None:
    judged = clock.judge(found)
    assert judged.verdict == verdict
    assert told in judged.what


@pytest.mark.parametrize(
    ("found", "verdict", "told"),
    [
        (Name("localhost", ["127.0.0.1"]), OK, "resolves to 127.0.0.1"),
        (Name("localhost", ["::1", "127.0.0.1"]), OK, ""),
        (Name("localhost", error="Name or service not known"), PROBLEM, "does not resolve"),
        (Name("localhost", ["10.0.0.7"]), PROBLEM, "10.0.0.7 is not this machine's loopback"),
        (Name("localhost", ["::1"], ["::1"]), PROBLEM, "where this machine cannot listen"),
        (Name("localhost", ["::1", "127.0.0.1"], ["::1"]), NOTE, "each connection first tries in vain"),
    ],
)
def test_localhost(found: Name, verdict: str, told: str) -> None:
    judged = network.localhost(found)
    assert judged.verdict == verdict
    assert told in judged.what


@pytest.mark.parametrize(
    ("found", "verdict", "told"),
    [
        (Name("gpu-1", ["10.0.0.7"]), OK, "'gpu-1' resolves to 10.0.0.7"),
        (Name("gpu-1", ["fe80::1%eth0"]), OK, ""),
        (Name("gpu-1", ["127.0.1.1"]), NOTE, "a loopback address"),
        (Name("gpu-1", ["127.0.1.1", "10.0.0.7"]), OK, ""),
        (Name("gpu-1", error="Name or service not known"), NOTE, "gloo falls back to the loopback"),
        (Name("gpu-1", ["192.0.2.9"], ["192.0.2.9"]), NOTE, "192.0.2.9 is no address of this machine"),
    ],
)
def test_host_name(found: Name, verdict: str, told: str) -> None:
    judged = network.host_name(found)
    assert judged.verdict == verdict
    assert told in judged.what


@pytest.mark.parametrize(
    ("first", "last", "reserved", "listening", "verdict", "told"),
    [
        (32768, 60999, [], [22, 8080], OK, "picked from 32768 to 60999"),
        (32768, 60999, [], [29500], NOTE, "listens on 29500, a default"),
        (32768, 33000, [], [], NOTE, "few"),
        (1024, 65535, [], [], NOTE, "29400, 29500, a default of torch's rendezvous, may so be taken"),
        (1024, 65535, [(29000, 30000)], [], OK, ""),
        (29450, 65535, [], [], NOTE, "; 29500, a default"),
    ],
)
def test_ports(
    first: int, last: int, reserved: list[tuple[int, int]], listening: list[int], verdict: str, told: str
) -> None:
    judged = network.ports(first, last, reserved, listening)
    assert judged.verdict == verdict
    assert told in judged.what


@pytest.mark.parametrize(
    ("variable", "value", "verdict"),
    [
        ("GLOO_SOCKET_IFNAME", "eth0", OK),
        ("GLOO_SOCKET_IFNAME", "eth0,lo", OK),
        ("GLOO_SOCKET_IFNAME", "eth", PROBLEM),
        ("GLOO_SOCKET_IFNAME", "eth0,ib0", PROBLEM),
        ("NCCL_SOCKET_IFNAME", "eth", OK),
        ("NCCL_SOCKET_IFNAME", "=eth", PROBLEM),
        ("NCCL_SOCKET_IFNAME", "=eth0", OK),
        ("NCCL_SOCKET_IFNAME", "^docker", OK),
        ("NCCL_SOCKET_IFNAME", "ib", PROBLEM),
    ],
)
def test_interfaces(variable: str, value: str, verdict: str) -> None:
    (judged,) = network.interfaces({variable: value}, ["lo", "eth0"])
    assert judged.verdict == verdict
    assert judged.what.startswith(f"{variable}={value}")


def test_loopback_and_ipv6() -> None:
    assert network.loopback("").verdict == OK
    assert network.loopback("Network is unreachable").verdict == PROBLEM
    assert network.ipv6("Cannot assign requested address").verdict == OK  # nothing needs it


@pytest.mark.parametrize("name", NEEDED)
def test_each_thing_that_a_launcher_needs_of_the_kernel(name: str) -> None:
    fine = dict.fromkeys(NEEDED, "")
    assert kernel.features(fine).verdict == OK
    judged = kernel.features({**fine, name: "Function not implemented"})
    assert judged.verdict == PROBLEM
    assert judged.what == f"missing: {NEEDED[name]} (Function not implemented)"


@pytest.mark.parametrize(
    ("found", "told", "advice"),
    [
        (
            Ptrace("Operation not permitted", 1, False),
            "ptrace_scope is 1: only a process's ancestors",
            "sysctl",
        ),
        (Ptrace("Operation not permitted", 2, False), "CAP_SYS_PTRACE may", "sysctl"),
        (Ptrace("Operation not permitted", 3, False), "nobody may", "it stays so until the next boot"),
        (Ptrace("Operation not permitted", 0, False), "(Operation not permitted)", "docker run --cap-add"),
        (Ptrace("Operation not permitted", 1, True), "(Operation not permitted)", "docker run --cap-add"),
        (Ptrace("Operation not permitted", None, False), "(Operation not permitted)", "docker run --cap-add"),
    ],
)
def test_ptrace(found: Ptrace, told: str, advice: str) -> None:
    judged = kernel.ptrace(found)
    assert judged.verdict == NOTE
    assert told in judged.what
    assert judged.advice.startswith(advice)


def test_ptrace_that_was_tried_and_works_is_fine_whatever_the_settings() -> None:
    assert kernel.ptrace(Ptrace("", 1, True)).verdict == OK


def test_leftovers() -> None:
    assert leftovers.boards([], 1).what == "none; 1 job of this user runs here now"
    dead = leftovers.boards(["/dev/shm/holdfast-a", "/dev/shm/holdfast-b"], 0)
    assert dead.verdict == NOTE
    assert dead.what.startswith(
        "2 directories of killed launchers: /dev/shm/holdfast-a, /dev/shm/holdfast-b;"
    )
    assert leftovers.orphans([]).verdict == OK
    left = leftovers.orphans([Orphan(7, "python train.py"), Orphan(8, "sleep 9")])
    assert left.verdict == PROBLEM
    assert "2 processes of dead jobs still run: 7 (python train.py), 8 (sleep 9)." in left.what
    assert left.advice.endswith("kill 7 8")


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (Runs([]), OK),
        (Runs(["/s"], 20, 5 * MIB, 86400.0), OK),
        (Runs(["/s"], 20, 5 * GIB, 86400.0), NOTE),
        (Runs(["/s"], 900, 5 * MIB, 86400.0), NOTE),
    ],
)
def test_old_runs(found: Runs, verdict: str) -> None:
    assert leftovers.runs(found).verdict == verdict


def test_run_directory() -> None:
    good, bad = (
        Folder("/home/a/.local/state/holdfast", free=GIB),
        Folder("/tmp/holdfast-1", "Permission denied"),
    )
    assert folders.run_directory(good, bad).verdict == OK
    assert folders.run_directory(replace(good, free=MIB), bad).verdict == NOTE
    moved = folders.run_directory(bad, good)
    assert moved.verdict == NOTE
    assert "journals go to /home/a/.local/state/holdfast, where they may be cleaned away" in moved.what
    assert folders.run_directory(bad, bad).verdict == PROBLEM
    chosen = folders.run_directory(bad, good, chosen=True)
    assert chosen.verdict == PROBLEM
    assert "ft_launcher will not start" in chosen.what


def test_temporary_folder() -> None:
    good = Folder("/tmp", free=GIB)
    assert folders.temporary(good, None).verdict == OK
    assert folders.temporary(good, "/tmp").verdict == OK
    assert "TMPDIR=/scratch cannot be used" in folders.temporary(good, "/scratch").what
    assert folders.temporary(replace(good, free=MIB), None).verdict == NOTE
    assert "its path has 70 characters" in folders.temporary(Folder("/" + 69 * "t", free=GIB), None).what
    assert folders.temporary(Folder("/tmp", "Read-only file system"), None).verdict == PROBLEM
