"""Real processes in every state: what /proc says of them, that no reader waits, and who was killed for memory."""

from __future__ import annotations

import math
import os
import signal
import socket
import time
import uuid
from pathlib import Path

import psutil
import pytest

from holdfast.fault_tolerance.processes import proc
from holdfast.incidents.capture import procfs
from holdfast.incidents.capture.host import OomWatch
from holdfast.incidents.capture.procfs import link
from holdfast.incidents.capture.waiting_on import kernel_stack, system_call
from holdfast.incidents.evidence import NodeFaultKind, Process, SystemCall, Target
from tests.memory_group import group as group
from tests.memory_group import set_limit
from tests.processes import Spawner, wait_until

KNOWN_MACHINE = pytest.mark.skipif(
    os.uname().machine not in ("x86_64", "aarch64"), reason="system calls have no names on this machine"
)


def twice(pid: int, pause: float = 0.05) -> Process:
    first = sampled(pid)
    time.sleep(pause)  # the time over which is measured, not a wait for something
    return procfs.process(first, sampled(pid), {})


def sampled(pid: int) -> procfs.Sample | None:
    found = procfs.sample(pid, 0)
    if found is not None:
        found.add(math.inf)
        assert found.complete
    return found


SLEEPS = ("clock_nanosleep", "select")  # time.sleep of Python 3.10 selects


def waits_in(pid: int, *names: str) -> SystemCall:
    return wait_until(lambda: found if (found := system_call(pid)).name in names else None, what=str(names))


def test_a_busy_process_uses_the_processor_and_a_sleeping_one_does_not(spawn: Spawner) -> None:
    busy, idle = spawn.python("while True: pass"), spawn.python("import time; time.sleep(600)")
    waits_in(idle.pid, *SLEEPS)
    seen = wait_until(
        lambda: found if (found := twice(busy.pid, 0.2)).cpu > 0.02 else None, what="it has a core"
    )
    sleeping = twice(idle.pid)
    assert seen.state == "R" and seen.sampled_over >= 0.2
    assert sleeping.state == "S" and sleeping.cpu == 0 and sleeping.switches == 0
    assert "sleep" in sleeping.wait_channel and sleeping.memory > 1 << 20


def test_threads_the_main_one_first(spawn: Spawner) -> None:
    code = (
        "import threading, time\n"
        "for _ in range(80): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "print('on', flush=True)\n"
        "while True: time.sleep(0.001)"
    )
    rank = spawn.python(code)
    rank.wait_for("on")

    def settled() -> Process | None:
        """Once the main thread has had a core meanwhile, and the others have come to their sleep."""
        main, *others = (found := twice(rank.pid, 0.1)).threads
        sleep = all(each.switches == 0 and each.state == "S" for each in others)
        return found if main.switches and sleep else None

    found = wait_until(settled)
    assert len(found.threads) == procfs.MOST_THREADS and found.threads[0].tid == rank.pid
    assert found.switches >= found.threads[0].switches


def test_a_zombie_a_gone_process_and_one_of_another_start_time() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    try:
        wait_until(lambda: (found := proc.stat(child)) and found.state == "Z")
        found = twice(child, 0)
        assert found.state == "Z" and found.memory == 0
        assert system_call(child) == SystemCall() and kernel_stack(child) == () and procfs.below(child) == ()
        started = proc.start_time(child)
        assert started is not None and procfs.sample(child, started + 1) is None
    finally:
        os.waitpid(child, 0)
    assert procfs.process(procfs.sample(child, started), None, {}) == procfs.GONE


@KNOWN_MACHINE
def test_reading_a_pipe(spawn: Spawner, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    rank = spawn.python("import os, sys; os.read(os.open(sys.argv[1], os.O_RDWR), 1)", str(fifo))
    assert waits_in(rank.pid, "read").path == str(fifo)
    found = system_call(rank.pid, proc.wait_channel(rank.pid))
    assert (found.name, found.target) == ("read", Target.FIFO)


@KNOWN_MACHINE
def test_reading_from_a_child(spawn: Spawner) -> None:
    rank = spawn.python(
        "import os, subprocess; os.read(subprocess.Popen(['sleep', '600'], stdout=-1).stdout.fileno(), 1)"
    )
    (child,) = wait_until(lambda: procfs.below(rank.pid))
    wait_until(lambda: system_call(rank.pid, family=lambda: (child,)).pid == child)
    assert system_call(rank.pid, family=lambda: (child,)).target is Target.CHILD_PIPE
    assert system_call(rank.pid).target is Target.PIPE and not system_call(rank.pid).pid


@KNOWN_MACHINE
def test_waiting_for_a_child(spawn: Spawner) -> None:
    rank = spawn.python("import os, subprocess; os.waitpid(subprocess.Popen(['sleep', '600']).pid, 0)")
    found = waits_in(rank.pid, "wait4")
    (child,) = procfs.below(rank.pid)
    assert (found.target, found.pid, str(found)) == (Target.PROCESS, child, f"wait4 pid {child}")
    wait_until(lambda: procfs.command(child) == "sleep 600" and psutil.Process(child).status() == "sleeping")
    sample = sampled(rank.pid)
    (seen,) = procfs.process(sample, None, {child: procfs.command(child)}).children
    assert (seen.pid, seen.command, seen.state) == (child, "sleep 600", "S")
    assert procfs.process(sample, None, {}).children[0].command == "[sleep]"


@KNOWN_MACHINE
def test_waiting_for_a_file_lock_names_its_owner(spawn: Spawner, tmp_path: Path) -> None:
    code = (
        "import fcntl, sys, time\n"
        "file = open(sys.argv[1], 'w')\n"
        "fcntl.flock(file, fcntl.LOCK_EX); print('locked', flush=True); time.sleep(600)"
    )
    owner = spawn.python(code, str(tmp_path / "lock"))
    owner.wait_for("locked")
    rank = spawn.python(code, str(tmp_path / "lock"))
    found = waits_in(rank.pid, "flock")
    assert (found.target, found.path, found.pid) == (Target.LOCK, f"{tmp_path}/lock", owner.pid)


@KNOWN_MACHINE
def test_waiting_for_an_answer_names_the_far_end(spawn: Spawner) -> None:
    code = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1]))).recv(1)"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        rank = spawn.python(code, str(port))
        with server.accept()[0]:
            found = waits_in(rank.pid, "recvfrom")
            of_a_rank = system_call(rank.pid, others=[rank.pid, os.getpid()])
    assert (found.target, found.peer, found.pid) == (Target.SOCKET, f"127.0.0.1:{port}", 0)
    assert of_a_rank.pid == os.getpid()


@KNOWN_MACHINE
def test_an_event_loop_that_waits_for_an_answer_names_the_far_end(spawn: Spawner) -> None:
    """Not the socket at which it listens, nor the one by which the loop wakes itself."""
    code = (
        "import asyncio, socket, sys\n"
        "async def ask():\n"
        "    await asyncio.start_server(print, '127.0.0.1', 0)\n"
        "    reader, _ = await asyncio.open_connection('127.0.0.1', int(sys.argv[1]))\n"
        "    print('asks', flush=True)\n"
        "    await reader.read(1)\n"
        "asyncio.run(ask())"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        rank = spawn.python(code, str(port))
        rank.wait_for("asks")
        found = waits_in(rank.pid, "epoll_wait")
    assert (found.target, found.peer) == (Target.SOCKET, f"127.0.0.1:{port}")


@KNOWN_MACHINE
def test_an_event_loop_that_waits_for_its_child_names_it(spawn: Spawner) -> None:
    """As asyncio does from Python 3.12 on; earlier, by a thread."""
    code = (
        "import os, selectors, subprocess\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "loop = selectors.EpollSelector()\n"
        "loop.register(os.pidfd_open(child.pid), selectors.EVENT_READ)\n"
        "print('waits for', child.pid, flush=True)\n"
        "loop.select()"
    )
    rank = spawn.python(code)
    child = int(rank.wait_for(r"waits for (\d+)")[1])
    assert waits_in(rank.pid, "epoll_wait").target is Target.UNKNOWN, "it may be any other process"
    found = system_call(rank.pid, family=lambda: [child])
    assert (found.target, found.pid, found.peer) == (Target.PROCESS, child, "")


def test_children_of_threads_and_of_children(spawn: Spawner) -> None:
    code = (
        "import subprocess, threading, time\n"
        "start = lambda: subprocess.Popen(['sh', '-c', 'sleep 600 & wait'])\n"
        "threading.Thread(target=lambda: (start(), time.sleep(600)), daemon=True).start()\n"
        "time.sleep(600)"
    )
    rank = spawn.python(code)

    def names() -> list[str]:
        return [stat.name for pid in procfs.below(rank.pid) if (stat := proc.stat(pid))]

    wait_until(lambda: names() == ["sh", "sleep"])
    assert set(procfs.below(rank.pid)) == set(proc.descendants({rank.pid}, proc.all_stats()))


@pytest.mark.skipif(os.geteuid() != 0, reason="kernel stacks are for root")
def test_the_kernel_stack(spawn: Spawner) -> None:
    rank = spawn(["sleep", "600"])
    waits_in(rank.pid, *SLEEPS)
    if not os.access(f"/proc/{rank.pid}/stack", os.R_OK) or not kernel_stack(rank.pid):
        pytest.skip("this kernel shows no stacks")
    assert "nanosleep" in " ".join(kernel_stack(rank.pid))


# -- processes that the kernel killed because memory ran out, for real in a control group where one can be made


EATS = """
import sys
with open(sys.argv[1]) as told: told.read()
eaten = []
while True: eaten.append(bytearray(b"x" * (1 << 20)))
"""
"""Uses up the memory of its group, once the FIFO is written to."""


def test_a_process_that_was_ended_for_want_of_memory(spawn: Spawner, group: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "go"
    os.mkfifo(fifo)
    eater = spawn.python(EATS, str(fifo))
    set_limit(group, 64 << 20)
    (group / "cgroup.procs").write_text(str(eater.pid))
    watch = OomWatch(f"/proc/{eater.pid}")
    try:
        assert watch.killed(eater.pid) == "" and watch.counted() == "" and watch.facts()[0] == ()
        fifo.write_text("go")
        assert eater.wait() == -signal.SIGKILL
        counted = watch.counted()
        assert f"{group}/memory." in counted and "1 process killed because memory ran out" in counted
        assert watch.killed(eater.pid)
        assert {fault.kind for fault in watch.facts()[0]} == {NodeFaultKind.OOM_KILL}
        is_logged = not watch.refused and link("/proc/self/ns/pid") == "pid:[4026531836]"
        assert watch.names(eater.pid) == is_logged, "a count names no process"
        assert not watch.names(os.getpid())
        if is_logged:
            assert f"Killed process {eater.pid} (python" in watch.killed(eater.pid)
            assert watch.killed(os.getpid()) == "", "the log names another one"
    finally:
        watch.close()


def test_a_plain_sigkill_is_no_want_of_memory(spawn: Spawner) -> None:
    rank = spawn(["sleep", "600"])
    watch = OomWatch(f"/proc/{rank.pid}")
    rank.kill()
    assert watch.killed(rank.pid) == ""
    watch.close()
    watch.close()  # again


def test_a_log_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    watch = OomWatch("/proc/0", str(tmp_path / "none"))
    assert watch.refused and watch.lines() == ()
    assert watch.killed(1) == "" and watch.facts() == ((), (watch.refused,))
    watch.close()


@pytest.mark.skipif(
    not os.access("/dev/kmsg", os.R_OK | os.W_OK), reason="the kernel's log is not ours to write"
)
def test_the_log_tells_what_came_after_it_was_opened() -> None:
    early, late = uuid.uuid4().hex, uuid.uuid4().hex
    Path("/dev/kmsg").write_text(f"holdfast-test Xid {early} blocked for more than 0 seconds\n")
    log = OomWatch()
    if log.refused:
        pytest.skip(log.refused)
    Path("/dev/kmsg").write_text(f"holdfast-test nothing {late}\n")
    Path("/dev/kmsg").write_text(f"holdfast-test {late} blocked for more than 0 seconds\n")
    found = [[line for line in log.lines() if "holdfast-test" in line] for _ in range(2)]
    log.close()
    assert found == [[f"holdfast-test {late} blocked for more than 0 seconds"]] * 2
