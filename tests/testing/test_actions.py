"""Each kind of fault in a real process: what is left of it is what its name says; deadlocks of real ranks."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.pages import DOCS, block
from tests.processes import Spawned, Spawner, alive, wait_until

LOOP = """
import atexit, sys
from holdfast.testing import Faults
atexit.register(print, "atexit ran", flush=True)
faults = Faults.from_env()
for step in range(10):
    faults.at_step(step)
    print("step", step, flush=True)
for line in sys.stdin:
    pass
"""

#: As LOOP, with a second thread whose ticks show whether other Python threads run.
TICKING = """
import threading, time
from holdfast.testing import Faults
ticks = []
def tick():
    while True:
        ticks.append(time.monotonic())
        time.sleep(0.005)
threading.Thread(target=tick, daemon=True).start()
while len(ticks) < 3:
    time.sleep(0.005)
faults = Faults.from_env()
start = time.monotonic()
faults.at_step(0)
end = time.monotonic()
inside = sum(start + 0.02 < t < end - 0.02 for t in ticks)
ticks.append(end)
pause = max(after - before for before, after in zip(ticks, ticks[1:]))
print(f"{inside} ticks in {end - start:.3f} seconds, pause {pause:.3f}", flush=True)
"""


@pytest.fixture
def run(spawn: Spawner) -> Callable[..., Spawned]:
    def start(fault: str, program: str = LOOP) -> Spawned:
        return spawn.python(program, env={"HOLDFAST_FAULT": fault})

    return start


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("exit@step=3", 1),
        ("exit@step=3,code=42", 42),
        ("kill@step=3", -signal.SIGKILL),
        ("segv@step=3", -signal.SIGSEGV),
    ],
)
def test_a_process_that_ends_on_the_spot(run: Callable[..., Spawned], fault: str, code: int) -> None:
    rank = run(fault)
    assert rank.wait() == code
    # Exactly the steps before it, and no cleanup.
    assert rank.out().split() == ["step", "0", "step", "1", "step", "2"]
    assert f"[holdfast.testing] rank 0, cycle 0: {fault.split('@')[0]}@" in rank.err()


def test_exit_shows_what_was_printed_before(spawn: Spawner) -> None:
    code = "from holdfast.testing import Fault, inject\nprint('buffered', end='')\n"
    code += "inject('exit@step=0,code=5').at_step(0)"
    rank = spawn.python(code)
    assert rank.wait() == 5
    assert rank.out() == "buffered"


def test_half_save_leaves_half_a_file(spawn: Spawner, tmp_path: Path) -> None:
    """Python's own writes and those of torch alike; what is smaller is written."""
    code = (
        "import sys, torch\nfrom holdfast.testing import inject\nfaults = inject('half_save@step=0,size=5000')\n"
        "torch.save(torch.zeros(5000), sys.argv[1] + '/before.pt')\nfaults.at_step(0)\n"
        "open(sys.argv[1] + '/small', 'wb').write(bytes(5000))\n"
        "torch.save(torch.zeros(5000), sys.argv[1] + '/after.pt')\nprint('not reached')\n"
    )
    rank = spawn.python(code, str(tmp_path))
    assert rank.wait() == -signal.SIGXFSZ and rank.out() == ""
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes["before.pt"] > 20000 and (sizes["small"], sizes["after.pt"]) == (5000, 5000)


def test_exception_passes_through_the_program(run: Callable[..., Spawned]) -> None:
    rank = run("exception@step=3,message=disk on fire")
    assert rank.wait() == 1
    assert "InjectedFault: disk on fire" in rank.err()
    assert "atexit ran" in rank.out()


def test_stop_leaves_the_process_stopped_until_sigcont(run: Callable[..., Spawned]) -> None:
    rank = run("stop@step=3")
    rank.wait_for(lambda: psutil.Process(rank.pid).status() == psutil.STATUS_STOPPED)
    assert "step 3" not in rank.out()
    rank.send_signal(signal.SIGCONT)
    assert rank.wait() == 0
    assert "step 9" in rank.out()


def test_sleep_stops_the_loop_and_lets_other_threads_run(run: Callable[..., Spawned]) -> None:
    rank = run("sleep@step=0,for=2s", TICKING)
    assert rank.wait() == 0
    ticks, seconds, _ = _ticks(rank)
    assert ticks > 0 and seconds >= 2


def test_sleep_without_a_duration_has_no_end_but_a_signal(run: Callable[..., Spawned]) -> None:
    rank = run("hang@step=3")
    rank.wait_for("happens now")
    rank.wait_for(lambda: psutil.Process(rank.pid).status() == psutil.STATUS_SLEEPING)
    assert rank.stop(signal.SIGTERM) == -signal.SIGTERM
    assert "step 3" not in rank.out()


def test_gil_lets_no_other_thread_run(run: Callable[..., Spawned]) -> None:
    rank = run("gil@step=0,for=0.5s", TICKING)
    assert rank.wait() == 0
    _, seconds, pause = _ticks(rank)
    assert pause >= 0.5 and seconds >= 0.5


def test_a_delayed_gil_stands_in_the_way_of_the_main_thread(spawn: Spawner) -> None:
    rank = spawn.python(
        "import time\n"
        "from holdfast.testing import inject\n"
        "now = time.monotonic()\n"
        "inject('gil@after=0.1s,for=0.7s')\n"
        "while (gap := time.monotonic() - now) < 0.6:\n"
        "    now += gap\n"
        "print(gap)\n"
    )
    rank.wait_for(r"^\d+\.\d")


def test_memory_ends_in_a_memory_error_within_its_limit(spawn: Spawner) -> None:
    rank = spawn.python(
        "import resource\n"
        "from holdfast.testing import inject\n"
        "try:\n"
        "    inject('memory@step=0,limit=96MiB').at_step(0)\n"
        "except MemoryError as error:\n"
        "    print(error)\n"
        # Not ru_maxrss: a program inherits that from the process it was forked from, here the test runner.
        "peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "print(int(peak.split()[1]) // 1024, 'MiB')\n"
        "print(resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY)\n"
        "bytearray(128 * 1024 * 1024)\n"  # It can allocate again.
    )
    assert rank.wait() == 0
    error, peak, restored = rank.out().splitlines()
    assert "MiB more did not fit (memory@step=0" in error
    assert 64 <= int(peak.split()[0]) <= 96 + 64
    assert restored == "True"


def test_ignore_term_outlives_sigterm(run: Callable[..., Spawned]) -> None:
    rank = run("ignore_term@step=3;sleep@step=5")
    rank.wait_for("sleep@.* happens now")
    rank.send_signal(signal.SIGTERM)
    assert ignores_term(rank.pid)
    assert rank.stop(signal.SIGINT) != -signal.SIGTERM


def ignores_term(pid: int) -> bool:
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        ignored = int(dict(line.split(":", 1) for line in status)["SigIgn"], 16)
    return bool(ignored & (1 << (signal.SIGTERM - 1)))


@pytest.mark.parametrize("ignore", ["no", "yes"])
def test_child_is_left_in_a_session_of_its_own(run: Callable[..., Spawned], ignore: str) -> None:
    rank = run(f"child@step=3,ignore_term={ignore};stop@step=4")
    rank.wait_for(lambda: psutil.Process(rank.pid).status() == psutil.STATUS_STOPPED)
    (child,) = psutil.Process(rank.pid).children()
    assert os.getsid(child.pid) == child.pid
    rank.send_signal(signal.SIGKILL)
    rank.wait()
    assert child.is_running()
    child.terminate()
    if ignore == "yes":
        assert ignores_term(child.pid)
        child.kill()
    wait_until(lambda: not alive(child.pid), what="the child's end")


def test_child_ends_by_itself_after_its_time(run: Callable[..., Spawned]) -> None:
    rank = run("child@step=3,for=0.1s;stop@step=4")
    rank.wait_for(lambda: psutil.Process(rank.pid).status() == psutil.STATUS_STOPPED)
    (child,) = psutil.Process(rank.pid).children()
    rank.wait_for(lambda: child.status() == psutil.STATUS_ZOMBIE)


def _ticks(rank: Spawned) -> tuple[int, float, float]:
    """How many there were meanwhile, its seconds, and the longest time without one."""
    words = rank.out().split()
    return int(words[0]), float(words[3]), float(words[6])


# -- a deadlock in a collective: real ranks on gloo, each in an all_reduce that the other is not in


RANK = """
import faulthandler, os, signal, sys
import torch, torch.distributed as dist
from holdfast.testing import Faults
faulthandler.register(signal.SIGUSR1)
if sys.argv[2] == "early":
    faults = Faults.from_env()
dist.init_process_group("gloo", init_method="file://" + sys.argv[1],
                        rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
if sys.argv[2] == "late":
    faults = Faults.from_env()
for step in range(4):
    value = torch.ones(100)
    where = "at_step"
    try:
        faults.at_step(step)
        where = "its own all_reduce"
        dist.all_reduce(value)
    except RuntimeError as error:
        print(f"step {step}: error in {where}: {error}", flush=True)
        os._exit(3)
    print(f"step {step}: {value[0]:.0f}", flush=True)
"""


def start(spawn: Spawner, folder: Path, fault: str, armed: str) -> list[Spawned]:
    env = {"WORLD_SIZE": "2", "HOLDFAST_FAULT": fault}
    store = str(folder / "store")
    return [spawn.python(RANK, store, armed, env={**env, "RANK": str(rank)}) for rank in range(2)]


def wait_until_in_collective_of_the_fault(rank: Spawned) -> None:
    """By its own stack, which it writes on SIGUSR1."""
    rank.wait_for("happens now")

    def in_all_reduce() -> re.Match[str] | None:
        rank.send_signal(signal.SIGUSR1)
        return re.search(r"all_reduce\n(.*\n)*?.*injector\.py.* in perform", rank.err())

    rank.wait_for(in_all_reduce)


def test_one_rank_is_in_an_all_reduce_that_the_other_never_joins(spawn: Spawner, tmp_path: Path) -> None:
    other, rank = start(spawn, tmp_path, "deadlock@step=2,rank=1", "late")
    wait_until_in_collective_of_the_fault(rank)
    assert rank.out().splitlines() == ["step 0: 2", "step 1: 2"]
    rank.kill()
    assert other.wait() == 3
    assert other.out().splitlines()[:2] == ["step 0: 2", "step 1: 2"]
    assert "step 2: error in its own all_reduce" in other.out()


def test_one_rank_skips_an_all_reduce_that_the_other_waits_in(spawn: Spawner, tmp_path: Path) -> None:
    other, rank = start(spawn, tmp_path, "deadlock@step=2,rank=1,how=skip", "early")
    wait_until_in_collective_of_the_fault(other)
    other.kill()
    assert rank.wait() == 3
    assert "step 2: error in its own all_reduce" in rank.out()
    assert "happens now" not in rank.err()


def test_its_duration_is_the_timeout_of_its_collective(spawn: Spawner, tmp_path: Path) -> None:
    other, rank = start(spawn, tmp_path, "deadlock@step=2,rank=1,for=3s", "early")
    assert rank.wait() == 3
    assert re.search(r"step 2: error in at_step: .*[Tt]imed out", rank.out())
    assert other.wait() == 3


def test_without_torch_distributed_the_error_says_what_to_do(spawn: Spawner) -> None:
    rank = spawn.python("from holdfast.testing import inject\ninject('deadlock@step=0').at_step(0)")
    assert rank.wait() == 1
    assert "torch.distributed was not initialised" in rank.err()


# -- `python -m holdfast.testing`, and docs/testing-your-recovery.md, which does what it says

PROGRAM = """
import json, os, sys
import neighbour
print(json.dumps([__name__, sys.argv[1:], sys.path[0], os.environ.get("HOLDFAST_FAULT")]), flush=True)
if "wait" in sys.argv:
    sys.stdin = os.fdopen(os.pipe()[0])
    sys.stdin.read()
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").write_text("")
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path / "program.py"


def test_a_delayed_fault_hits_a_program_that_knows_nothing(spawn: Spawner, program: Path) -> None:
    command = [sys.executable, "-m", "holdfast.testing", program, "--flag", "wait"]
    rank = spawn(command, env={"HOLDFAST_FAULT": "kill@after=0.2s"})
    assert rank.wait() == -signal.SIGKILL


@pytest.mark.parametrize("words", [["program.py", "--flag", "a b"], ["-m", "program", "x"]])
def test_the_program_sees_itself_as_it_would_without_us(
    spawn: Spawner, program: Path, words: list[str]
) -> None:
    plain = spawn([sys.executable, *words], cwd=program.parent)
    ours = spawn([sys.executable, "-m", "holdfast.testing", *words], cwd=program.parent)
    assert (plain.wait(), ours.wait()) == (0, 0)
    assert ours.out() == plain.out()


def test_faults_at_a_step_are_left_to_the_program(spawn: Spawner, program: Path) -> None:
    fault = {"HOLDFAST_FAULT": "kill@step=3;kill@after=1h"}
    run = spawn([sys.executable, "-m", "holdfast.testing", program], env=fault)
    assert run.wait() == 0
    assert run.out().rstrip().endswith('"kill@step=3"]')
    assert "left to the program's own Faults.at_step: kill@step=3" in run.err()


@pytest.mark.parametrize(
    ("words", "start"),
    [
        ([], "usage: "),
        (["-m"], "usage: "),
        (["--what"], "usage: "),
        (["program.py"], "holdfast.testing: error: HOLDFAST_FAULT: "),
    ],
)
def test_a_wrong_command_line_or_fault_is_one_line_and_status_2(
    spawn: Spawner, program: Path, words: list[str], start: str
) -> None:
    command = [sys.executable, "-m", "holdfast.testing", *words]
    run = spawn(command, cwd=program.parent, env={"HOLDFAST_FAULT": "kil@after=1s"})
    assert (run.wait(), run.out()) == (2, "")
    assert run.err().startswith(start) and run.err().count("\n") == 1


# -- the page --------------------------------------------------------------------------------------------------


PAGE = DOCS / "testing-your-recovery.md"


@pytest.mark.slow
def test_the_page_s_own_test_passes(spawn: Spawner, tmp_path: Path) -> None:
    for name in ("train.py", "test_recovery.py"):
        (tmp_path / name).write_text(block(PAGE.name, name))
    # Two of its faults: each of them is tested on its own elsewhere.
    faults = ("kill@step=12", "stop@step=12,rank=1")
    chosen = [f"test_recovery.py::test_recovers[{fault}]" for fault in faults]
    options = ["-q", "-p", "no:cacheprovider", "--basetemp", tmp_path / "runs"]
    run = spawn([sys.executable, "-m", "pytest", *options, *chosen], cwd=tmp_path)
    assert run.wait(ceiling=150) == 0, run.output()
    assert re.search(r"^2 passed", run.out(), re.MULTILINE), run.output()
