"""Network namespaces joined by veth pairs to a switch: machines, as far as the network can tell.

What always holds: after the `with` block nothing of it is left, and nothing outside of the namespaces was changed
(the switch has a namespace of its own).
Does not cover: process, user and mount namespaces; the nodes share files, memory and process ids.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import uuid
from contextlib import suppress
from types import TracebackType

import pytest

PIDFD_GETFD = 438  # pidfd_getfd(2): the same number on every architecture


def missing() -> str:
    """Why namespaces cannot be made here; '' when they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the command `ip` (iproute2)"
    name = f"hf-{uuid.uuid4().hex[:6]}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode != 0:
        return f"network namespaces cannot be made here: {tried.stderr.strip()}"
    _ip("netns", "delete", name)
    return ""


class Network:
    """One namespace for each letter of `names`, at addresses 10.77.0.1 and on."""

    def __init__(self, names: str) -> None:
        self._names = names
        self._prefix = f"hf-{uuid.uuid4().hex[:6]}"
        self._switch = f"{self._prefix}-switch"

    def __enter__(self) -> Network:
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def _make(self) -> None:
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "switch", "up")
        for name in self._names:
            space = self._space(name)
            _ip("netns", "add", space)
            _ip("-n", space, "link", "set", "lo", "up")
            peer = ["peer", "name", f"to-{name}", "netns", self._switch]
            _ip("-n", space, "link", "add", "eth0", "type", "veth", *peer)
            _ip("-n", self._switch, "link", "set", f"to-{name}", "master", "switch", "up")
            _ip("-n", space, "address", "add", f"{self.address(name)}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")

    def _space(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def address(self, name: str) -> str:
        """The node's address in this network."""
        return f"10.77.0.{self._names.index(name) + 1}"

    def inside(self, name: str) -> list[str]:
        """Put before a command, runs it in the node's namespace (the same process, by exec)."""
        return ["ip", "netns", "exec", self._space(name)]

    def unplug(self, name: str) -> None:
        """Pull the node's cable: what is sent is lost, and no node is notified."""
        _ip("-n", self._switch, "link", "set", f"to-{name}", "down")

    def close(self) -> None:
        """Remove all namespaces, and with them their devices."""
        for space in (*map(self._space, self._names), self._switch):
            subprocess.run(["ip", "netns", "delete", space], capture_output=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class HostNames(Network):
    """Launchers of one machine and one network, each with a host name of its own."""

    def __init__(self, **names: str) -> None:
        super().__init__("")
        self._hosts = names

    def address(self, name: str) -> str:
        """The same for all: the order of the nodes must not follow from it."""
        return "127.0.0.1"

    def inside(self, name: str) -> list[str]:
        """Runs a command under the node's host name (the same process, by exec)."""
        rename = 'echo "$0" > /proc/sys/kernel/hostname && exec "$@"'
        return ["unshare", "--uts", "sh", "-c", rename, self._hosts[name]]


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr.strip()}"


def cut(pid: int, port: int) -> int:
    """Break all TCP connections of a process to this port, as a firewall does; returns how many there were."""
    process, count = os.pidfd_open(pid), 0
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if not os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                    continue
                copy = ctypes.CDLL(None).syscall(PIDFD_GETFD, process, int(name), 0)
                if copy < 0:
                    pytest.skip("descriptors of another process cannot be had here: pidfd_getfd(2)")
                with socket.socket(fileno=copy) as link:
                    if link.family in (socket.AF_INET, socket.AF_INET6) and link.getpeername()[1] == port:
                        link.shutdown(socket.SHUT_RDWR)
                        count += 1
    finally:
        os.close(process)
    return count
