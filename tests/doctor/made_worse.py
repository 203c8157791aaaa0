"""Programs that make their own surroundings worse and then become the command that follows: for tests of the doctor.

`python made_worse.py HOW COMMAND…`. What always holds: only this process and its successors see the change; exit code
77 says that this system does not allow it.
Source: seccomp(2), unshare(2), netdevice(7).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import socket
import struct
import subprocess
import sys
import tempfile
import time

CANNOT = 77
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWNET = 0x00020000, 0x04000000, 0x40000000
MS_RDONLY, MS_BIND, MS_PRIVATE = 1, 4096, 16384 | 1 << 18
PTRACE = {"x86_64": 101, "aarch64": 117}
PIDFD_OPEN = 434
libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        print(os.strerror(number), file=sys.stderr)
        sys.exit(CANNOT)


def without_calls() -> None:
    """No ptrace (not permitted) and no pidfd_open (not implemented), as under some seccomp profiles."""
    ptrace = PTRACE.get(platform.machine())
    if ptrace is None:
        sys.exit(CANNOT)
    load, jump, answer = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
    allow, refuse = 0x7FFF0000, 0x00050000
    program = [
        (load, 0, 0, 0),
        (jump, 0, 1, ptrace),
        (answer, 0, 0, refuse | 1),
        (jump, 0, 1, PIDFD_OPEN),
        (answer, 0, 0, refuse | 38),
        (answer, 0, 0, allow),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    checked(libc.prctl(38, 1, 0, 0, 0))  # PR_SET_NO_NEW_PRIVS
    checked(libc.prctl(22, 2, header, 0, 0))  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def without_network() -> None:
    """A network of its own whose loopback is down."""
    checked(libc.unshare(CLONE_NEWNET))


def without_shm() -> None:
    """/dev/shm is there and read-only."""
    checked(libc.unshare(CLONE_NEWNS))
    checked(libc.mount(b"none", b"/", None, MS_PRIVATE, None))
    checked(libc.mount(b"none", b"/dev/shm", b"tmpfs", MS_RDONLY, None))


def without_proc() -> None:
    """Another user's container may be like that: nothing in /proc."""
    checked(libc.unshare(CLONE_NEWNS))
    checked(libc.mount(b"none", b"/", None, MS_PRIVATE, None))
    checked(libc.mount(b"none", b"/proc", b"tmpfs", 0, None))


def deaf_resolver() -> None:
    """The machine's name has to be asked for, and the name server never answers."""
    checked(libc.unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWNET))
    checked(libc.mount(b"none", b"/", None, MS_PRIVATE, None))
    socket.sethostname("gpu-1.example.com")
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    flags = struct.pack("16sh", b"lo", 1 | 64)  # IFF_UP, IFF_RUNNING
    fcntl.ioctl(server, 0x8914, flags + bytes(32))  # SIOCSIFFLAGS
    server.bind(("127.0.0.1", 53))
    server.set_inheritable(True)
    server.detach()  # it stays open, and no process reads
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("nameserver 127.0.0.1\noptions timeout:30\n")
        file.flush()
        checked(libc.mount(file.name.encode(), b"/etc/resolv.conf", None, MS_BIND, None))


ROOT = "/sys/fs/cgroup"
ONE = ("pids/pids.max", "30"), ("memory/memory.limit_in_bytes", "700M")
TWO = ("pids.max", "30"), ("memory.max", "700M")


def _removed(group: str) -> None:
    """A group is busy until its last process is reaped."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return os.rmdir(group)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def small_container() -> None:
    """Control groups of its own: 30 processes, 700 MiB. This process stays and removes them."""
    groups: list[str] = []

    def join() -> None:
        for group in groups:
            with open(f"{group}/cgroup.procs", "w") as file:
                file.write("0")

    code = CANNOT
    try:
        for name, value in ONE if os.path.exists(f"{ROOT}/pids") else TWO:
            folder, file_name = os.path.split(os.path.join(ROOT, name))
            group = f"{folder}/hf-test-{os.getpid()}"
            if group not in groups:
                os.mkdir(group)
                groups.append(group)
            with open(f"{group}/{file_name}", "w") as file:
                file.write(value)
        code = subprocess.run(sys.argv[2:], preexec_fn=join).returncode
    except (OSError, subprocess.SubprocessError) as error:
        print(error, file=sys.stderr)
    for group in groups:
        _removed(group)
    sys.exit(code)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    os.execvp(sys.argv[2], sys.argv[2:])
