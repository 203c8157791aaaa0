"""Starting a monitor: neither the user's environment nor what else is installed reaches it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.fault_tolerance.monitor import main as starting

PROBE = """
import dataclasses, json, os, sys

def main():
    channel = json.loads(sys.argv[-1])["channel"]
    found = {"env": dict(os.environ), "dataclasses": dataclasses.__file__, "session": os.getsid(0) == os.getpid()}
    os.write(channel, json.dumps(found).encode())
"""

CODE = """
import sys
sys.path.insert(0, sys.argv[1])
sys.stdin.readline()
from holdfast.fault_tolerance.monitor import main
main.ignore_signals()
import signal
print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), flush=True)
sys.stdin.readline()
"""


@dataclass
class Settings:
    channel: int


def _started(module: str) -> dict[str, object]:
    """What a monitor that is started finds."""
    mine, theirs = os.pipe()
    process = starting.start(module, Settings(theirs), theirs)
    os.close(theirs)
    with open(mine, encoding="utf-8") as pipe:
        found = json.load(pipe)
    assert process.wait(60) == 0
    assert isinstance(found, dict)
    return found


def test_what_lies_beside_the_package_is_no_standard_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An old backport in site-packages must not take its place."""
    (tmp_path / "dataclasses.py").write_text("raise SystemExit('the backport was imported')")
    (tmp_path / "probe.py").write_text(PROBE)
    monkeypatch.setattr(starting, "PACKAGE_ROOT", str(tmp_path))
    assert _started("probe")["dataclasses"] != str(tmp_path / "dataclasses.py")


def test_of_the_environment_it_gets_what_an_interpreter_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    monkeypatch.setattr(starting, "PACKAGE_ROOT", str(tmp_path))
    for name in ("LD_PRELOAD", "MALLOC_CONF", "PYTHONMALLOC", "FT_RANK_MONITOR_IPC_SOCKET", "MASTER_ADDR"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    monkeypatch.setenv("HOLDFAST_MINE", "1")
    found = _started("probe")
    env = found["env"]
    assert isinstance(env, dict) and env["LD_LIBRARY_PATH"] == "/nowhere"
    assert env["HOLDFAST_MINE"] == "1"
    assert {name for name in env if not name.startswith("HOLDFAST_")} <= set(starting.KEPT)
    assert found["session"] is True


def test_signals_that_come_before_the_first_line_are_dropped() -> None:
    command = [sys.executable, "-I", "-S", "-c", CODE, starting.PACKAGE_ROOT]
    with starting.spawn_shielded():
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdin and child.stdout
        for number in starting.SHIELDED:
            child.send_signal(number)
        child.stdin.write("continue\n")
        child.stdin.flush()
        assert child.stdout.readline() == "[]\n", "nothing stays blocked for what a monitor starts"
        for number in starting.SHIELDED:
            child.send_signal(number)
    assert child.returncode == 0


def test_the_starter_gets_its_signals_afterwards() -> None:
    got = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
    try:
        with starting.spawn_shielded():
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
            assert not got
        assert got == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)
