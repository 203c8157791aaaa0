"""`holdfast diagnose`: which job a number or a directory means, what is said of it, how long it takes, no harm."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.incidents import evidence as E
from holdfast.incidents import rules
from holdfast.incidents.diagnose.diagnose import Diagnosis, diagnose, lines
from holdfast.incidents.diagnose.find_job import DiagnoseError
from holdfast.incidents.diagnose.find_job import find_job as job
from holdfast.incidents.verdict import Activity, Judgement
from tests.incidents import cases
from tests.jobs import LAUNCHER, TORCHRUN
from tests.processes import Spawned, Spawner, alive, wait_until

NODE = socket.gethostname()

RANK = """
import os, sys, time
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
print("trains", flush=True)
for step in range(1 << 30):
    client.start_section("train")
    client.heartbeat(step)
    time.sleep(0.01)
    client.end_section("train")
"""

# What `holdfast diagnose` sees of a launcher: a lock on its boards, a journal, and ranks below it. Without torch.
STAND_IN = """
import os, subprocess, sys, time
from holdfast.fault_tolerance.board import Board, Identity, Limits
from holdfast.fault_tolerance.processes import proc
boards, run_dir, rank, count, user = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])
os.makedirs(boards, 0o700)
os.makedirs(run_dir, 0o700, exist_ok=True)
owner = open(os.path.join(boards, "owner"), "w")
lock = open(os.path.join(run_dir, ".journal-node.jsonl.lock"), "w")
folder = os.path.join(boards, "cycle-3")
held = []
for local in range(count):
    path = os.path.join(folder, f"{local}.board")
    os.makedirs(folder, exist_ok=True)
    held.append(Board.create(path, Limits()))
    numbers = {"FT_RANK_MONITOR_IPC_SOCKET": path, "RANK": str(local), "LOCAL_RANK": str(local)}
    numbers["MY_TOKEN"] = "swordfish99"
    child = subprocess.Popen([sys.executable, "-c", rank], env={**os.environ, **numbers})
    held[-1].bind_process(Identity(child.pid, proc.start_time(child.pid), local, local, 3, time.monotonic_ns()))
if user:
    for path, folders, files in os.walk(boards):
        for name in (path, *(os.path.join(path, each) for each in files)):
            os.chown(name, user, user)
    os.setuid(user)
print("runs", flush=True)
time.sleep(600)
"""


@pytest.fixture
def stand_in(spawn: Spawner, tmp_path: Path) -> Callable[..., Spawned]:
    """A stand-in for a launcher, with so many ranks that train; its run directory is `tmp_path / run`."""

    def start(
        count: int = 2, *, run: str = "run", name: str = "a", rank: str = RANK, user: int = 0
    ) -> Spawned:
        boards = tmp_path / f"holdfast-{name}"
        process = spawn.python(STAND_IN, str(boards), str(tmp_path / run), rank, str(count), str(user))
        process.wait_for("runs")
        if rank == RANK:
            wait_until(lambda: process.out().count("trains") == count)
        return process

    return start


@pytest.fixture
def looked(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What the command prints, in this process."""

    def look(*arguments: object, code: int = 0) -> str:
        assert main(["diagnose", *map(str, arguments)]) == code
        out, err = capsys.readouterr()
        told, silent = (err, out) if code else (out, err)
        assert not silent
        return told

    return look


def refused(looked: Callable[..., str], *arguments: object) -> str:
    """The one line of an error, without its beginning."""
    told = looked(*arguments, code=2)
    assert told.startswith("holdfast: error: ")
    assert told.count("\n") == 1
    assert "Traceback" not in told
    return told.removeprefix("holdfast: error: ").rstrip("\n")


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().split()[2]


# Wrong arguments.


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (("0",), f"there is no process 0 on node {NODE}"),
        (("-5",), "-5 is no process: numbers of processes are positive"),
        (("2147483646",), "there is no process 2147483646"),
        (("99999999999999999999",), "there is no process 99999999999999999999"),
        (("9" * 5000,), "is larger than the number of any process"),
        (("",), "the name is empty. Name a process by its number, or a run directory"),
        (("12three",), "12three: there is no such directory, and no process of this number"),
        (("/no/where",), "/no/where: there is no such directory"),
        (("/dev/null",), "/dev/null: is no directory"),
        (("٣",), "٣: there is no such directory"),
        ((str(os.getpid()),), "is this command itself"),
        *(
            ((f"--seconds={seconds}", "1"), f"--seconds {seconds}: give a number from 0.2 to 60")
            for seconds in ("0", "-1", "nan", "1e9", "soon", "")
        ),
    ],
)
def test_what_means_nothing(looked: Callable[..., str], asked: tuple[str, ...], told: str) -> None:
    assert told in refused(looked, *asked)


def test_a_page_that_cannot_be_written(looked: Callable[..., str], tmp_path: Path) -> None:
    assert "there is no folder" in refused(looked, "1", "--html", tmp_path / "no" / "page.html")
    assert "give the name of a file" in refused(looked, "1", "--html", tmp_path)


def test_a_zombie(looked: Callable[..., str]) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    wait_until(lambda: state(child.pid) == "Z")
    told = refused(looked, child.pid)
    child.wait()
    assert f"has ended, and process {os.getpid()} " in told
    assert told.endswith(f"holdfast diagnose {os.getpid()}")


def test_a_thread_of_the_kernel(looked: Callable[..., str]) -> None:
    stat = Path("/proc/2/stat")
    if not stat.exists() or "kthreadd" not in stat.read_text():
        pytest.skip("threads of the kernel are not visible here")
    assert "is a thread of the kernel, and no program" in refused(looked, 2)


def test_another_user_s_process(spawn: Spawner) -> None:
    if os.geteuid():
        pytest.skip("to be another user takes root")
    process = spawn.python("import time; time.sleep(600)")
    job(str(process.pid)).close()  # all is imported
    os.seteuid(65534)
    try:
        with pytest.raises(DiagnoseError) as caught:
            job(str(process.pid))
    finally:
        os.seteuid(0)
    told = str(caught.value)
    assert f"process {process.pid} (" in told and "belongs to user root" in told
    assert told.endswith("Run this as root")


def test_root_sees_another_user_s_job_without_its_boards(
    stand_in: Callable[..., Spawned], looked: Callable[..., str]
) -> None:
    if os.geteuid():
        pytest.skip("to own a process of another user takes root")
    code = "import os, time\nos.setuid(65534)\nprint('sleeps', flush=True)\ntime.sleep(600)"
    process = stand_in(rank=code, user=65534)
    wait_until(lambda: process.out().count("sleeps") == 2)
    where = job(str(process.pid))
    assert [(rank.rank, rank.board, rank.prefix) for rank in where.ranks] == [(0, None, ""), (1, None, "")]
    assert re.search(r"the boards are user \w+'s. Run this as \w+ to have them", where.notes[0])
    assert "Steps and sections are left out" in looked(process.pid, "--seconds", "0.5")
    assert len(children(process.pid)) == 2


# Which job is meant.


def test_every_way_to_name_a_job_of_ours(stand_in: Callable[..., Spawned], tmp_path: Path) -> None:
    process = stand_in()
    ranks = children(process.pid)
    (tmp_path / "link").symlink_to("run")
    for asked in (process.pid, *ranks, tmp_path / "run", tmp_path / "link"):
        where = job(str(asked))
        assert [(rank.rank, rank.pid) for rank in where.ranks] == list(enumerate(ranks))
        assert all(rank.board and rank.prefix.endswith(f"cycle-3/{rank.rank}") for rank in where.ranks)
        assert f"ft_launcher, process {process.pid}, cycle 3, 2 ranks on node {NODE}" in where.title
        where.close()


def test_a_launcher_below_a_shell(spawn: Spawner, tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(STAND_IN)
    words = [sys.executable, tmp_path / "code.py", tmp_path / "holdfast-x", tmp_path, RANK, "1", "0"]
    shell = spawn(["/bin/sh", "-c", '"$@"; true', "sh", *words])
    shell.wait_for("trains")
    where = job(str(shell.pid))
    assert where.title.startswith(f"below process {shell.pid} (/bin/sh ")
    assert len(where.ranks) == 1
    where.close()


def test_several_launchers_in_one_directory(stand_in: Callable[..., Spawned], tmp_path: Path) -> None:
    one, other = stand_in(1), stand_in(1, name="b")
    told = r"2 launchers are at work there: .*Name one by its number"
    with pytest.raises(DiagnoseError, match=told) as caught:
        job(str(tmp_path / "run"))
    assert all(f"{process.pid} (" in str(caught.value) for process in (one, other))


def test_a_job_beside_the_one_that_has_the_directory(
    stand_in: Callable[..., Spawned], tmp_path: Path
) -> None:
    one = stand_in(1)
    other = stand_in(1, run=f"run/also-{one.pid}", name="b")
    where = job(str(tmp_path / "run"))
    assert f"process {one.pid}," in where.title
    assert where.notes == [f"Another job works next to it: holdfast diagnose {other.pid}."]
    where.close()


def test_several_launchers_below_a_process(
    spawn: Spawner, looked: Callable[..., str], tmp_path: Path
) -> None:
    code = (
        "import subprocess, sys\n"
        "for name in 'ab':\n"
        "    subprocess.Popen([sys.executable, '-c', sys.argv[1], f'{sys.argv[2]}/holdfast-{name}', *sys.argv[2:]])\n"
        "sys.stdin.read(), __import__('time').sleep(600)\n"
    )
    above = spawn.python(code, STAND_IN, str(tmp_path), "", "0", "0")
    wait_until(lambda: above.out().count("runs") == 2)
    told = refused(looked, above.pid)
    assert f"below process {above.pid} (" in told and "are 2 launchers: " in told
    assert all(f"{pid} (" in told for pid in children(above.pid))


def test_a_job_between_two_cycles(
    stand_in: Callable[..., Spawned], looked: Callable[..., str], tmp_path: Path
) -> None:
    for asked in (stand_in(0).pid, tmp_path / "run"):
        assert "has no rank now: it is between two cycles" in refused(looked, asked)


def test_a_directory_in_which_nothing_runs(looked: Callable[..., str], tmp_path: Path) -> None:
    assert "is no job's run directory: there is no journal in it" in refused(looked, tmp_path)
    run = tmp_path / "runs" / "a"
    run.mkdir(parents=True)
    (run / "journal-a.jsonl").touch()
    told = refused(looked, run)
    assert f"no launcher works there now on this node ({NODE})" in told
    assert told.endswith(f"or see holdfast incidents {run}")
    assert f"It holds those of {run}: name one of them" in refused(looked, tmp_path / "runs")


def test_ranks_of_nobody_s_launcher(spawn: Spawner) -> None:
    """By their environments, as torchrun's; a data loader's worker below one of them names the same job."""
    code = (
        "import os, subprocess, sys, time\n"
        "def start(rank, port):\n"
        "    env = {**os.environ, 'RANK': rank, 'LOCAL_RANK': rank, 'WORLD_SIZE': '8', 'GROUP_WORLD_SIZE': '2',\n"
        "           'GROUP_RANK': '1', 'MASTER_PORT': port, 'TORCHELASTIC_RUN_ID': 'this'}\n"
        '    below = \'import subprocess; subprocess.run(["sleep", "600"])\'\n'
        "    subprocess.Popen([sys.executable, '-c', below], env=env)\n"
        "start('4', '1'), start('5', '1'), start('0', '2')\n"
        "print('runs', flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = spawn.python(code)
    parent.wait_for("runs")
    ranks = children(parent.pid)
    for asked in (ranks[0], wait_until(lambda: children(ranks[1]))[0]):
        where = job(str(asked))
        assert [(rank.rank, rank.pid) for rank in where.ranks] == [(4, ranks[0]), (5, ranks[1])]
        assert (where.place.nodes, where.place.node_rank, where.place.world_size) == (2, 1, 8)
        assert "2 ranks of 8 on node" in where.title and "other nodes are not seen from here" in where.title
    assert len(job(str(parent.pid)).ranks) == 3


# What is said.


def test_a_job_that_is_well_and_then_has_a_stopped_rank(
    stand_in: Callable[..., Spawned], looked: Callable[..., str], tmp_path: Path
) -> None:
    process = stand_in()
    before = sorted(path.name for path in (tmp_path / "run").rglob("*"))
    verdict = "All 2 ranks make progress, by the boards: no rank is blocked."

    def make_progress() -> list[str]:
        """The report on ranks that have a core at that moment."""
        told = looked(process.pid, "--seconds", "1").splitlines()
        return told if told[4:] == [f"  verdict: {verdict} (confidence high)"] else []

    shown = wait_until(make_progress)
    assert shown[0].startswith(f"Diagnosed: ft_launcher, process {process.pid}")
    assert shown[1] == f"DIAGNOSIS: no hang found on {NODE}"
    for number, rank in enumerate(children(process.pid)):
        line = shown[2 + number]
        assert re.match(rf"  rank {number} \(pid {rank}\): step \d+ \d\.\d\d s ago; it ", line), line
    assert sorted(path.name for path in (tmp_path / "run").rglob("*")) == before
    assert all(alive(rank) for rank in children(process.pid))
    assert len(children(process.pid)) == 2

    # And then one is stopped.
    os.kill(rank, signal.SIGSTOP)
    wait_until(lambda: state(rank) == "T")
    told = looked(rank, "--seconds", "1")
    for part in (f"DIAGNOSIS: rank 1 (node {NODE})", "state T (stopped)", "): Rank 1 "):
        assert part in told
    assert len(told.splitlines()) <= 42
    assert state(rank) == "T"  # and it is left so
    os.kill(rank, signal.SIGCONT)


def test_json_and_a_page(
    stand_in: Callable[..., Spawned], looked: Callable[..., str], tmp_path: Path
) -> None:
    process = stand_in(rank="import time, os\nwhile True: time.sleep(1)  # swordfish99\n")
    page = tmp_path / "page.html"
    told = json.loads(looked(process.pid, "--json", "--seconds", "1", "--html", page))
    assert (told["schema"], told["nodes"][0]["trigger"]) == (2, E.DIAGNOSE)
    assert [rank["rank"] for rank in told["nodes"][0]["ranks"]] == [0, 1]
    assert told["looked_at"].startswith("ft_launcher, process ")
    assert "swordfish99" not in json.dumps(told) + page.read_text()
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert page.read_text().lstrip().lower().startswith("<!doctype html>")


def test_a_process_that_knows_nothing_of_us_is_not_harmed(spawn: Spawner, looked: Callable[..., str]) -> None:
    """It handles no signal: any would end it."""
    process = spawn.python("import time\nprint('runs', flush=True)\nfor _ in range(6000): time.sleep(0.1)")
    process.wait_for("runs")
    told = looked(process.pid, "--seconds", "1")
    assert told.startswith(f"Diagnosed: process {process.pid} (")
    assert ", which is no rank of a job\n" in told and "\nDIAGNOSIS: " in told
    assert process.returncode is None


def test_the_python_below_a_shell_whose_secret_is_not_shown(
    spawn: Spawner, looked: Callable[..., str]
) -> None:
    code = {"P": sys.executable, "C": "print(1, flush=True); import time; time.sleep(600)"}
    words = ["/bin/sh", "-c", '"$P" -c "$C"; true', "--token=hf_abcdefghijklmnopqrstuvwxyz"]
    shell = spawn(words, env=code)
    shell.wait_for("1")
    told = looked(shell.pid, "--seconds", "0.5")
    (python,) = children(shell.pid)
    assert told.startswith(f"Diagnosed: process {python} (") and "abcdefghij" not in told
    title = f'the Python below {shell.pid} (/bin/sh -c "$P" -c "$C"; true --token=***)'
    assert title in told.splitlines()[0]


def test_a_process_that_ends_while_it_is_looked_at(spawn: Spawner) -> None:
    process = spawn.python("import time; time.sleep(600)")
    where = job(str(process.pid))
    process.kill()
    with pytest.raises(DiagnoseError, match="ended before its evidence was captured"):
        diagnose(where, 0.5)


def test_pid_one(spawn: Spawner) -> None:
    """One line or a report, whatever runs on this machine; in its time."""
    process = spawn([sys.executable, "-m", "holdfast", "diagnose", "1", "--seconds", "0.5"])
    assert process.wait() in (0, 2)
    assert "Traceback" not in process.output()
    if process.returncode == 2:
        assert process.err().count("\n") == 1


# Real jobs.

TRAINS = """
import contextlib, os, time
import torch, torch.distributed as dist
from holdfast.fault_tolerance import RankMonitorClient
dist.init_process_group("gloo")
if "FT_RANK_MONITOR_IPC_SOCKET" in os.environ:
    client = RankMonitorClient()
    client.init_workload_monitoring()
    section, heartbeat = client.section, client.heartbeat
else:
    section, heartbeat = contextlib.nullcontext, print
x = torch.ones(4)
def read_the_data():
    while os.path.exists(os.environ["HOLD"]) and dist.get_rank() == 1:
        time.sleep(0.05)
step = 0
while True:
    step += 1
    with section("data_loading"):
        read_the_data()
    with section("step"):
        time.sleep(0.02)
        dist.all_reduce(x)
    heartbeat(step)
    if step == 5:
        print("trains", flush=True)
"""


@pytest.mark.slow
def test_a_real_job_of_ours(spawn: Spawner, tmp_path: Path) -> None:
    script, hold, run = tmp_path / "train.py", tmp_path / "hold", tmp_path / "run"
    script.write_text(TRAINS)
    words = [*LAUNCHER, "--nproc-per-node=2", f"--ft-run-dir={run}", "--ft-warm-start=on", str(script)]
    process = spawn(words, env={"HOLD": str(hold)})
    wait_until(lambda: process.out().count("trains") == 2)
    until_told(spawn, str(run), f"DIAGNOSIS: no hang found on {NODE}")
    hold.touch()
    told = until_told(spawn, str(process.pid), r"\): Rank 1 ")
    assert "Rank 1: data_loading" in told and "rank 0 " in told
    hold.unlink()
    until_told(spawn, str(process.pid), "no hang found")  # it was not harmed
    assert process.stop(signal.SIGTERM) == 0


RANKS_THAT_SLEEP = """
import os, subprocess, sys, time
code = "import time\\nprint('runs', flush=True)\\nwhile True: time.sleep(0.1)"
for rank in "01":
    subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "RANK": rank, "WORLD_SIZE": "2"})
time.sleep(600)
"""


def test_diagnose_of_ranks_that_do_the_same_finds_nothing(spawn: Spawner) -> None:
    """Ranks of another launcher, without boards and without a flight recorder."""
    process = spawn.python(RANKS_THAT_SLEEP)
    wait_until(lambda: process.out().count("runs") == 2)
    told = until_told(spawn, str(process.pid), "verdict: Nothing stands out: each of 2 ranks sleeps in ")
    assert f"\nDIAGNOSIS: no hang found on {NODE}\n  rank 0 (pid " in told
    assert "Next" not in told


@pytest.mark.slow
def test_a_real_job_of_torchrun_below_a_shell_script(spawn: Spawner, tmp_path: Path) -> None:
    script, shell, hold = tmp_path / "train.py", tmp_path / "run.sh", tmp_path / "hold"
    script.write_text(TRAINS)
    shell.write_text(f"#!/bin/sh\n{sys.executable} {script}\nexit $?\n")
    shell.chmod(0o700)
    options = ["--standalone", f"--log-dir={tmp_path}", "--nproc-per-node=2", "--no-python"]
    process = spawn([*TORCHRUN, *options, shell], env={"HOLD": str(hold)})
    wait_until(lambda: process.out().count("trains") == 2)
    hold.touch()
    told = until_told(spawn, str(process.pid), r"read_the_data\(\)")
    assert told.startswith(f"Diagnosed: 2 ranks on node {NODE}, started by process {process.pid} (")
    assert "): Rank 1 " in told
    hold.unlink()
    assert process.returncode is None
    process.stop()


def until_told(spawn: Spawner, asked: str, what: str) -> str:
    """The report of a command of its own, once it has this."""

    def look() -> str:
        process = spawn([sys.executable, "-m", "holdfast", "diagnose", asked])
        assert process.wait() == 0, process.err()
        return process.out() if re.search(what, process.out()) else ""

    return wait_until(look)


# The rule.


def rank(number: int = 0, **board: object) -> E.RankEvidence:
    facts = E.BoardFacts(connected=True, **board)  # type: ignore[arg-type]
    return E.RankEvidence(number, number, 10 + number, "gpu-1", board=facts, process=E.Process(state="S"))


def case(*ranks: E.RankEvidence) -> E.Case:
    return E.Case((E.NodeEvidence("gpu-1", E.DIAGNOSE, ranks=ranks),))


@pytest.mark.parametrize(
    ("ranks", "moves"),
    [
        ([rank(moved=True), rank(1, moved=True)], True),
        ([rank(moved=True), rank(1, moved=False, silent=3)], False),
        ([rank(moved=True), rank(1, finished=True, silent=60)], True),
        ([rank(finished=True, silent=60)], False),
        ([rank(silent=15.0, rhythm=10.0)], True),
        ([rank(silent=35.0, rhythm=10.0)], False),
        ([replace(rank(), board=None, process=E.Process(state="R", cpu=1.0))], False),
        ([replace(rank(moved=True), process=E.Process(state="T"))], False),
    ],
)
def test_diagnose_finds_no_hang_where_all_ranks_move(ranks: list[E.RankEvidence], moves: bool) -> None:
    found = Diagnosis("a job", case(*ranks), rules.judge(case(*ranks)), ())
    assert ("no hang found" in found.lines()[1]) is moves


def test_diagnose_of_a_healthy_job_has_a_line_per_rank() -> None:
    well = case(
        rank(moved=True, step=4182, silent=0.25, sections=(E.OpenSection("forward", 0.2),)),
        rank(1, moved=True, silent=0.5),
        rank(2, finished=True, silent=60),
    )
    verdict = rules.judge(well).verdict
    assert lines(well, Judgement(verdict, (Activity(0, "user_code", "computes"),))) == [
        "DIAGNOSIS: no hang found on gpu-1",
        "  rank 0 (pid 10): step 4182 0.25 s ago; it computes",
        "  rank 1 (pid 11): last sign of life 0.50 s ago",
        "  rank 2 (pid 12) has finished",
        "  verdict: All 2 ranks make progress, by the boards: no rank is blocked. (confidence high)",
    ]


@pytest.mark.parametrize(("silent", "finds"), [(2.0, False), (31.0, True)])
@pytest.mark.parametrize("where", ["all_reduce", "own_import", "sleep"])
def test_diagnose_of_ranks_in_one_place_at_one_moment(where: str, silent: float, finds: bool) -> None:
    """That all ranks do the same is a finding where their boards have been silent for long."""
    ranks = [cases.rank(number, where, board=cases.board(silent=silent)) for number in range(2)]
    verdict = rules.judge(case(*ranks)).verdict
    assert verdict.sentence.startswith("Nothing stands out: ") is not finds
    assert verdict.rank is None


def test_diagnose_of_a_large_job_has_forty_lines() -> None:
    well = case(*(rank(number, moved=True) for number in range(512)))
    found = lines(well, rules.judge(well))
    assert len(found) <= 40 and "  and 480 more" in found


# -- it ends in its time, whatever the processes of the machine do meanwhile


LIMIT = 0.5
"""For `--seconds`."""
LATEST = LIMIT + 2.0
"""Seconds after which the command has ended, where it has a core: tests try again until it had one."""

# In a mount namespace of its own, where no environment of the children can be opened: a pipe without a writer is over
# each. A process that is busy with its memory map keeps a reader waiting in the same way.
BLOCKED = """
import os, subprocess, sys, time
parent, fifo = int(sys.argv[1]), sys.argv[2]
for pid in open(f"/proc/{parent}/task/{parent}/children").read().split():
    subprocess.run(["mount", "--bind", fifo, f"/proc/{pid}/environ"], check=True)
from holdfast.cli.main import main
began = time.monotonic()
code = main(["diagnose", *sys.argv[1:2], "--seconds", sys.argv[3]])
print("took", time.monotonic() - began, file=sys.stderr, flush=True)
os._exit(code)  # threads still wait for the pipe
"""

# A tree of sleeping processes: each of the first generation has as many children.
TREE = """
import os, sys, time
first, second = int(sys.argv[1]), int(sys.argv[2])
for _ in range(first):
    if os.fork() == 0:
        for _ in range(second):
            if os.fork() == 0:
                time.sleep(600)
                os._exit(0)
        os.write(1, b"ready\\n")
        time.sleep(600)
        os._exit(0)
print("runs", flush=True)
time.sleep(600)
"""

# The process that is asked for ends while its command looks at the list of all processes.
ENDS_MEANWHILE = """
import os, signal, sys

def end_once(event, found, done=[]):
    if not done and event == "os.listdir" and str(found[0]) == "/proc":
        done.append(True)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

pid = os.spawnvp(os.P_NOWAIT, "sleep", ["sleep", "600"])
from holdfast.cli.main import main
sys.addaudithook(end_once)
sys.exit(main(["diagnose", str(pid), "--seconds", "0.5"]))
"""


def test_diagnose_of_environments_that_block_ends_in_time(spawn: Spawner, tmp_path: Path) -> None:
    separate = ["unshare", "--mount", "--propagation", "private"]
    if subprocess.run([*separate, "true"], capture_output=True).returncode:
        pytest.skip("a mount namespace takes root")
    process = spawn.python(TREE, "40", "0")
    process.wait_for(lambda: process.out().count("ready") == 40)
    os.mkfifo(tmp_path / "fifo")
    arguments = [str(process.pid), str(tmp_path / "fifo"), str(LIMIT)]

    def in_time() -> bool:
        command = spawn([*separate, sys.executable, "-c", BLOCKED, *arguments])
        assert command.wait() == 0, command.output()
        took = re.search(r"^took (\S+)$", command.err(), re.MULTILINE)
        return took is not None and float(took[1]) < LATEST

    wait_until(in_time)


@pytest.mark.slow
def test_diagnose_of_2000_processes_ends_in_time(spawn: Spawner) -> None:
    process = spawn.python(TREE, "40", "49")
    process.wait_for(lambda: process.out().count("ready") == 40)
    assert len(os.listdir("/proc")) > 2000

    def in_time() -> bool:
        began = time.monotonic()
        assert main(["diagnose", str(process.pid), "--seconds", str(LIMIT)]) == 0
        return time.monotonic() - began < LATEST

    wait_until(in_time)


def test_diagnose_of_a_process_that_ends_meanwhile_is_one_line(spawn: Spawner) -> None:
    process = spawn.python(ENDS_MEANWHILE)
    assert process.wait() == 2, process.output()
    (line,) = process.err().splitlines()
    assert line.startswith("holdfast: error: process ") and "ended" in line
