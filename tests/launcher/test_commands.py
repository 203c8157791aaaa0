"""Commands on real jobs: `holdfast top`, one frame or live on a terminal; `holdfast goodput`, near the truth."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from holdfast.cli.main import main
from tests.jobs import LAUNCHER, PRELUDE, Jobs
from tests.processes import Spawner, wait_until

TOP = [sys.executable, "-m", "holdfast", "top"]

OPENS = """
client = connect()
for step in range(1, 6):
    with client.section("step"):
        client.heartbeat(step)
if RANK == 1:
    client.start_section("data_loading")
say("ready")
until("end")
"""
"""After five steps rank 1 is in the section data_loading until the file `end` is there."""
LIMITS = ("--ft-rank-section-timeouts=step:50,data_loading:400",)


def once(spawn: Spawner, *words: str | Path, code: int = 0) -> str:
    process = spawn([*TOP, *words])
    assert process.wait() == code, process.output()
    assert process.err() == "" or code
    return process.out() if code == 0 else process.err()


class Terminal:
    """`holdfast top` on a terminal of its own; `text` is what it wrote so far."""

    def __init__(self, spawn: Spawner, *words: str | Path) -> None:
        self.leader, self._follower = pty.openpty()
        self.resize(24, 100)
        self.before = termios.tcgetattr(self._follower)
        # The leader of a session without a terminal takes the one that it opens.
        opens = ["sh", "-c", 'exec "$@" <$TTY >$TTY 2>$TTY', "sh"]
        env = {"TTY": os.ttyname(self._follower), "TERM": "xterm", "COLUMNS": None, "LINES": None}
        self.process = spawn([*opens, *TOP, *words], env=env)
        os.set_blocking(self.leader, False)
        self.text = ""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.leader, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait_for(self, pattern: str) -> None:
        """Wait until what it writes from now on matches."""
        self._read()
        self.text = ""

        def shows() -> bool:
            self._read()
            assert self.process.returncode is None, self.text
            return bool(re.search(pattern, self.text))

        wait_until(shows, what=f"{pattern}: {self.text[-2000:]}")

    def _read(self) -> None:
        try:
            while chunk := os.read(self.leader, 65536):
                self.text += chunk.decode(errors="replace")
        except OSError:
            return

    def interrupt(self) -> int:
        """Press Ctrl-C; returns the exit code."""
        os.write(self.leader, b"\x03")
        code = self.end()
        assert termios.tcgetattr(self._follower) == self.before
        return code

    def end(self) -> int:
        """Wait for its end; returns the exit code."""
        wait_until(lambda: self._read() or self.process.returncode is not None, what="it ends")
        self._read()
        return self.process.wait()

    def close(self) -> None:
        self.process.kill()
        os.close(self.leader)
        os.close(self._follower)


@pytest.fixture
def top(spawn: Spawner) -> Iterator[Callable[..., Terminal]]:
    with ExitStack() as stack:
        yield lambda *words: stack.enter_context(closing(Terminal(spawn, *words)))


def test_top_on_a_terminal_follows_jobs_and_ends_with_ctrl_c(
    jobs: Jobs, top: Callable[..., Terminal], tmp_path: Path
) -> None:
    """It waits for the first one, and finds the next one in the same run directory."""
    run_dir = tmp_path / "later"
    screen = top(run_dir)
    screen.wait_for(r"No\s+such\s+file")
    for number in range(2):
        screen.resize(24, 100)
        job = jobs.plain("--ft-run-dir", run_dir, "--nproc-per-node=2", *LIMITS, jobs.script(OPENS))
        job.hear("ready", ranks=[0, 1])
        screen.wait_for(f"process {job.pid}, cycle 0, 2 ranks")
        screen.wait_for(r"data_loading [\d.]+ of 400 s")
        if number:
            screen.resize(8, 40)
            screen.wait_for(r"rank      step  state")
            screen.resize(3, 10)
            screen.wait_for(r"goodput ")
            screen.resize(24, 160)
        job.tell("end")
        job.end(0)
        screen.wait_for("the job ended with exit code 0")
    shutil.rmtree(run_dir)
    screen.wait_for(r"No\s+such\s+file")
    assert screen.interrupt() == 130
    assert "\x1b[?1049l" in screen.text and "\x1b[?25h" in screen.text and "Traceback" not in screen.text


def test_top_on_a_terminal_ends_with_sigterm(top: Callable[..., Terminal], tmp_path: Path) -> None:
    screen = top(tmp_path / "later")
    screen.wait_for(r"No\s+such\s+file")
    screen.process.send_signal(signal.SIGTERM)
    assert screen.end() == 143


def test_top_on_a_terminal_refuses_a_process_without_a_job(top: Callable[..., Terminal]) -> None:
    screen = top(str(os.getpid()))
    assert screen.end() == 2
    assert "holdfast: error: " in screen.text and "\x1b[?1049h" not in screen.text


def test_top_shows_the_open_section_and_then_the_end(spawn: Spawner, jobs: Jobs) -> None:
    job = jobs(OPENS, *LIMITS)
    job.hear("ready", ranks=[0, 1])
    before = sorted(path.name for path in job.run_dir.iterdir())
    for asked in (str(job.run_dir), str(job.pid)):
        text = once(spawn, "--once", asked)
        ranks = re.findall(r"^ +(\d+) +(\d+) +\S+  (\w+) +(.*)$", text, re.MULTILINE)
        states = [(rank, step, state) for rank, step, state, _ in ranks]
        assert states == [("0", "5", "training"), ("1", "5", "training")]
        assert re.search(r"data_loading \d+\.\d of 400 s  data_loading \d+\.\d s", ranks[1][3])
        assert "data_loading" not in ranks[0][3]
        assert re.search(r"^goodput \d+\.\d% of .*, cycles: 1, failures: 0$", text, re.MULTILINE)
    assert sorted(path.name for path in job.run_dir.iterdir()) == before

    job.tell("end")
    job.end(0)
    text = once(spawn, job.run_dir)
    assert "the job ended with exit code 0" in text and "no launcher works there now" in text
    assert once(spawn, str(job.pid), code=2).startswith(f"holdfast: error: there is no process {job.pid}")
    (journal,) = job.run_dir.glob("journal-*.jsonl")
    journal.write_bytes(journal.read_bytes()[:-20])
    assert "cycles: 1" in once(spawn, job.run_dir), "of a torn journal the rest"


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["--once", "nowhere"], "nowhere: No such file or directory. Name the run directory of a job."),
        (["--once", " "], "' ' is no job. Name a run directory, or a process by its number"),
        (["4194305"], "there is no process 4194305 on this node."),
        (["9" * 5000], "there is no process 99999999999999999999 on this node."),
        ([sys.executable], "is no directory. Name the run directory of a job, or a process"),
    ],
)
def test_top_wrong_arguments_are_one_line(
    words: list[str], cause: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and cause in err and len(err.splitlines()) == 1


# -- `holdfast goodput` accounts for known losses, to 0.2 s of what the program's clocks say

NEAR = 0.2
"""Seconds. A step takes 0.05."""

LOSES = """
ATTEMPT = os.environ["HOLDFAST_ATTEMPT"]
SAVED, NOTED = f"{os.environ['NOTES']}/saved", open(f"{os.environ['NOTES']}/noted", "a", buffering=1)

def note(what, *more):
    NOTED.write(" ".join(map(str, (time.time(), ATTEMPT, CYCLE, what, *more))) + "\\n")

def save(step):
    note("saves", step)
    with client.section("checkpointing"):
        time.sleep(0.3)
        with open(SAVED, "w") as file:
            file.write(str(step))
    note("saved", step)

def preempted(*_):
    note("preempted")
    time.sleep(0.7)
    with open(SAVED, "w") as file:
        file.write(str(step))
    os._exit(0)

signal.signal(signal.SIGTERM, preempted)
client = connect()
first = int(open(SAVED).read()) + 1 if os.path.exists(SAVED) else 1
for step in range(first, 161):
    note("step", step)
    with client.section("step"):
        client.heartbeat(step)
        if (ATTEMPT, CYCLE, step) == ("1", 0, 40):
            note("hangs")
            wait()
        time.sleep(0.05)
    if (ATTEMPT, CYCLE, step) == ("1", 1, 75):
        note("dies")
        kill_me(signal.SIGKILL)
    if step % 25 == 0:
        save(step)
    if (ATTEMPT, step) == ("1", 110):
        note("asks")
note("finishes")
open(os.environ["FAULT_TOL_FINISHED_FLAG_FILE"], "w").close()
"""
"""Hangs in step 40; dies after step 75; a checkpoint follows each 25th step. Preempted, it saves and ends."""

COMMAND = """
import os, subprocess, sys, time

def note(*words):
    print(time.time(), os.environ["HOLDFAST_ATTEMPT"], 0, *words, file=noted)

noted = open(os.environ["NOTES"] + "/noted", "a", buffering=1)
note("begins")
launcher = subprocess.Popen(sys.argv[1:])
note("launcher", launcher.pid)
code = launcher.wait()
note("ends")
sys.exit(code)
"""


class Lag:
    """How late this machine wakes a process, at the most: `seconds`, while it is entered."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._measure)

    def __enter__(self) -> Lag:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _measure(self) -> None:
        before = time.monotonic()
        while not self._over.wait(0.01):
            now = time.monotonic()
            self.seconds = max(self.seconds, now - before - 0.01)
            before = now


class Noted:
    """The moments that programs have noted by their own clock: unix seconds by attempt, cycle and words."""

    def __init__(self, path: Path) -> None:
        lines = [line.split() for line in path.read_text().splitlines()]
        self.times = [
            (int(attempt), int(cycle), " ".join(what), float(t)) for t, attempt, cycle, *what in lines
        ]

    def at(self, attempt: int, cycle: int, what: str) -> float:
        """When it first noted what begins with this."""
        return min(t for *place, said, t in self.times if place == [attempt, cycle] and said.startswith(what))

    def between(self, what: str, end: str) -> float:
        """Seconds from each of the one to the next of the other."""
        starts = [t for *_, said, t in self.times if said.startswith(what)]
        return sum(t for *_, said, t in self.times if said.startswith(end)) - sum(starts)


@pytest.mark.slow
def test_each_bucket_is_near_the_truth(
    spawn: Spawner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hang, a kill, a preemption, and 20 s in the queue."""
    (tmp_path / "train.py").write_text(PRELUDE + LOSES)
    (tmp_path / "command.py").write_text(COMMAND)
    path = tmp_path / "noted"
    path.touch()
    flags = ["--nproc-per-node=1", "--max-restarts=3", "--ft-rank-section-timeouts=step:3,checkpointing:60"]
    command = [sys.executable, "command.py", *LAUNCHER, *flags, "train.py"]
    chain = ["autoresume", "--run-dir", "run", "--backoff", "20", "--", *command]
    job = spawn([sys.executable, "-m", "holdfast", *chain], env={"NOTES": str(tmp_path)}, cwd=tmp_path)
    with Lag() as lag:
        job.wait_for("HANG: rank 0")
        noticed = time.time()
        wait_until(lambda: "asks" in path.read_text())
        os.kill(int(path.read_text().partition("launcher ")[2].split()[0]), signal.SIGTERM)
        asked = time.time()
        assert job.wait() == 0, job.output()

    noted = Noted(path)
    at = noted.at
    saves = noted.between("saves", "saved")
    lost = at(1, 0, "hangs") - at(1, 0, "step 26") + at(1, 1, "dies") - at(1, 1, "step 51")
    ends = at(1, 0, "hangs"), at(1, 1, "dies"), asked, at(2, 0, "finishes")
    trained = sum(ends) - sum(at(*place, "step") for place in ((1, 0), (1, 1), (1, 2), (2, 0)))
    truth = {
        "training": trained - saves - lost,
        "lost": lost,
        "checkpointing": saves,
        "validation": 0.0,
        "data": 0.0,
        "start-up": sum(at(attempt, 0, "step") - at(attempt, 0, "begins") for attempt in (1, 2)),
        "undetected": noticed - at(1, 0, "hangs"),
        "restart": at(1, 1, "step") - noticed + at(1, 2, "step") - at(1, 1, "dies"),
        "stopping": at(1, 0, "ends") - asked + at(2, 0, "ends") - at(2, 0, "finishes"),
        "waiting": at(2, 0, "begins") - at(1, 0, "ends"),
        "unknown": 0.0,
    }
    assert main(["goodput", str(tmp_path / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(found["seconds"].values()) == pytest.approx(found["wall"], abs=0.1)
    assert found["seconds"] == pytest.approx(truth, abs=NEAR + 2 * lag.seconds)
    assert found["lost_steps"] == 15 + 25, "the one that hung included"
    assert found["by_kind"] == {"hang": 1, "crash": 1}
