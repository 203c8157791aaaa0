"""The last lines of stderr: the launcher reads what the prologue keeps, and a rank's stderr stays what it was."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.fault_tolerance.launcher.ranks import failures
from holdfast.fault_tolerance.launcher.ranks.rank_environment import PROLOGUE
from tests.processes import Spawner

PROGRAM = """
import io, os, sys
err = sys.stderr
same = (err.name, err.mode, err.encoding, err.errors, err.line_buffering, err.write_through, err.fileno())
print(same, type(err) is io.TextIOWrapper, hasattr(err.buffer, "raw"), "HOLDFAST_STDERR_FILE" in os.environ)
sys.stdout.flush()
for number in range(int(sys.argv[1])):
    print("line", number, "grün", file=err)
if os.fork() == 0:
    print("a child", file=err)
    os._exit(0)
os.wait()
os.write(2, b"native\\n")
err.write("the end")
err.flush()
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize(("count", "unbuffered"), [(3, ""), (5000, "1")])
def test_the_last_lines_of_a_killed_process(
    spawn: Spawner, tmp_path: Path, count: int, unbuffered: str
) -> None:
    kept = {"PYTHONPATH": PROLOGUE, "HOLDFAST_STDERR_FILE": str(tmp_path / "0.stderr")}
    plain, told = (
        spawn([sys.executable, "-c", PROGRAM, str(count)], env={"PYTHONUNBUFFERED": unbuffered, **env})
        for env in ({"PYTHONPATH": None}, kept)
    )
    assert plain.wait() == told.wait() == -9
    assert told.out() == plain.out(), "the script cannot tell the difference"
    assert told.err() == plain.err(), "nothing is lost, nothing comes twice"
    lines = [f"line {number} grün" for number in range(count)]
    (file,) = tmp_path.glob("0.stderr*")
    assert file.name == f"0.stderr.{told.pid}"
    assert failures.last_lines(str(file)) == tuple([*lines, "the end"][-failures.LAST_LINES :])
    assert file.stat().st_size <= failures.TAIL_BYTES


ALARMS = """
import signal, sys, threading, time
class Alarm(Exception):
    pass
def ring(*_):
    raise Alarm
signal.signal(signal.SIGALRM, ring)
done = []
def spin():
    while not done:
        pass
threading.Thread(target=spin).start()
lost = 0
for _ in range(100):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.003)
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            print("a bar of progress", file=sys.stderr)
        lost += 1
    except Alarm:
        pass
done.append(1)
sys.exit(lost)
"""


def test_what_a_signal_handler_raises_is_raised(spawn: Spawner, tmp_path: Path) -> None:
    """Also while a line is kept, beside a thread that never lets go of the interpreter by itself."""
    env = {"PYTHONPATH": PROLOGUE, "HOLDFAST_STDERR_FILE": str(tmp_path / "0.stderr")}
    assert spawn([sys.executable, "-u", "-c", ALARMS], env=env).wait() == 0


STAND_IN = """
import io, sys
class Tee(io.StringIO):
    pass
sys.stderr = Tee()
"""


def test_a_stderr_that_the_site_has_replaced_is_left_alone(spawn: Spawner, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(STAND_IN)
    place = str(tmp_path / "0.stderr")
    env = {"PYTHONPATH": f"{PROLOGUE}:{tmp_path}", "HOLDFAST_STDERR_FILE": place}
    program = spawn([sys.executable, "-c", "import sys; print(type(sys.stderr).__name__)"], env=env)
    assert (program.wait(), program.out()) == (0, "Tee\n")
    assert not list(tmp_path.glob("0.stderr*"))


@pytest.mark.parametrize("place", ["/nowhere/0.stderr", "/dev/full"])
def test_no_room_for_the_last_lines(spawn: Spawner, place: str) -> None:
    env = {"PYTHONPATH": PROLOGUE, "HOLDFAST_STDERR_FILE": place}
    program = spawn([sys.executable, "-c", PROGRAM, "3"], env=env)
    assert program.wait() == -9
    assert program.err().splitlines() == [
        "line 0 grün",
        "line 1 grün",
        "line 2 grün",
        "a child",
        "native",
        "the end",
    ]
