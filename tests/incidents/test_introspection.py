"""What a rank has on it so that it can be asked: nothing that its program could notice, whatever the program does."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from holdfast.fault_tolerance.board import Board, Limits
from holdfast.incidents.evidence import Missing, StackSource
from tests.incidents.armed_ranks import Rank, fill
from tests.processes import Spawner, wait_until


def test_a_rank_ends_at_once_while_its_thread_waits(spawn: Spawner, tmp_path: Path) -> None:
    for number, (end, code) in enumerate((("", 0), ("sys.exit(3)", 3), ("1/0", 1), ("os._exit(4)", 4))):
        text = f"begin_thread(); sys.excepthook = lambda *_: None\n{end}"
        rank = Rank(spawn, tmp_path / str(number), text)
        assert rank.process.wait(60) == code and not rank.process.output()
        assert (rank.armed() or {})["thread"]


def test_questions_while_the_interpreter_ends(spawn: Spawner, tmp_path: Path) -> None:
    """Signals and questions all along, to the end and past it: it ends as it would have."""
    text = "import time; begin_thread(); say('ready')\nfor _ in range(20): time.sleep(0.005)"
    for number in range(5):
        rank = Rank(spawn, tmp_path / str(number), text).ready()
        box = Path(f"{rank.prefix}.ask")
        while rank.process.returncode is None:
            rank.ask(0.01)
            if box.exists():
                box.rename(f"{box}.away")  # every other time: by the signal
            else:
                Path(f"{box}.away").rename(box)
        assert rank.process.wait() == 0 and rank.process.output() == "ready\n"


LOOKS = """
import signal, threading, warnings
before = {number: signal.getsignal(number) for number in signal.valid_signals()}
begin_thread()
after = {number: signal.getsignal(number) for number in signal.valid_signals()}
say("handlers", before == after, after[45])
say("threads", threading.active_count(), threading.enumerate() == [threading.main_thread()])
say("blocked", signal.pthread_sigmask(signal.SIG_BLOCK, []))
say("next", os.open("/dev/null", os.O_RDONLY))
there = [number for number in range(3, 1024) if os.path.exists(f"/proc/self/fd/{number}")]
say("inherited", [number for number in there if os.get_inheritable(number)])
say("modules", {"faulthandler", "introspection", "optimizer_hook", "rank_answer"} & set(sys.modules))
import faulthandler
faulthandler.enable(); say("usable", faulthandler.is_enabled())
"""


def test_what_the_program_sees(spawn: Spawner, tmp_path: Path) -> None:
    rank = Rank(spawn, tmp_path, LOOKS)
    assert rank.process.wait() == 0
    assert rank.process.out().splitlines() == [
        "handlers True 0",
        "threads 1 True",
        "blocked set()",
        "next 3",
        "inherited []",
        "modules set()",
        "usable True",
    ]


def test_a_signal_that_the_program_waits_for_is_its_own(spawn: Spawner, tmp_path: Path) -> None:
    """The helper thread takes none: one that is blocked everywhere else stays for `sigwait`."""
    text = "begin_thread()\nimport signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
    text += "say('ready')\nsay('got', signal.sigwait([signal.SIGTERM]))"
    rank = Rank(spawn, tmp_path, text).ready()
    os.kill(rank.process.pid, 15)
    assert rank.process.wait() == 0 and "got " in rank.process.out()


def test_a_signal_that_is_taken_is_not_taken_away(spawn: Spawner, tmp_path: Path) -> None:
    text = """
import signal, time
del os.environ["HOLDFAST_WITNESS"]
signal.signal(45, lambda *_: say("mine"))
signal.signal(46, signal.SIG_IGN)
begin_thread()
os.kill(os.getpid(), 45)
say("ready")
time.sleep(600)
"""
    rank = Rank(spawn, tmp_path, text, HOLDFAST_WITNESS="off").ready()
    rank.process.wait_for("mine")
    assert (rank.armed() or {})["signal"] == 47
    Path(f"{rank.prefix}.ask").unlink()
    assert rank.ask().stacks_from is StackSource.SIGNAL
    assert rank.process.out().count("mine") == 1


FORKS = """
import time
begin_thread()
child = os.fork()
if child == 0:
    say("child", os.getpid())
    time.sleep(600)
def parent():
    say("ready")
    time.sleep(600)
parent()
"""


def test_a_forked_child_does_not_answer(spawn: Spawner, tmp_path: Path) -> None:
    rank = Rank(spawn, tmp_path, FORKS).ready()
    child = rank.process.wait_for(r"child (\d+)")
    assert isinstance(child, re.Match)
    rank.within("parent")
    for _ in range(20):
        assert rank.functions(rank.ask())[0] == "parent"
    os.kill(rank.process.pid, 9)
    assert rank.process.wait() == -9
    assert rank.ask().no_stacks is Missing.ENDED
    os.kill(int(child[1]), 9)


@pytest.mark.parametrize("deed", ["os.closerange(3, 4096)", "os.dup2(mine, 901)"])
def test_a_descriptor_that_becomes_another_file_is_not_read(
    spawn: Spawner, tmp_path: Path, deed: str
) -> None:
    text = f"""
import time
begin_thread()
reads, writes = os.pipe()
mine = os.dup(reads)
def waits():  # the thread: in read(2) on its own FIFO
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{{task}}/syscall") as file:
            if file.read().split()[1:2] == ["0x385"]:
                return True
while not waits():
    time.sleep(0.001)
{deed}
if not os.path.exists("/proc/self/fd/3"):
    reads, writes = os.pipe()
    os.dup2(reads, 901)
say("ready")
time.sleep(0.3)
os.write(writes, b"x" * 8)
time.sleep(0.3)
say("mine", os.read(reads, 100))
time.sleep(600)
"""
    rank = Rank(spawn, tmp_path, text).ready()
    rank.ask()  # perhaps its last answer: it finds then that the number is another file's
    rank.process.wait_for("mine b'xxxxxxxx'")
    rank.ask(0.2)
    assert rank.process.returncode is None


def test_no_room_and_a_removed_folder(spawn: Spawner, small_disk: Path) -> None:
    text = "import time; begin_thread()\ndef here():\n    say('ready')\n    time.sleep(600)\nhere()"
    rank = Rank(spawn, small_disk / "job", text).ready()
    fill(small_disk / "filler")
    found = rank.ask(1.0)
    assert not found.stacks and found.no_stacks
    assert not Path(f"{rank.prefix}.answer.new").exists()
    (small_disk / "filler").unlink()
    rank.within("here", "<module>")
    for path in rank.folder.iterdir():
        path.unlink()
    assert rank.ask(0.5).no_stacks is Missing.NOT_ARMED
    assert rank.process.returncode is None
    rank.process.kill()


def test_nowhere_to_leave_anything(spawn: Spawner, tmp_path: Path) -> None:
    for number, board in enumerate(("/nonexistent/0.board", "", "0", "/dev/null")):
        text = f"os.environ['FT_RANK_MONITOR_IPC_SOCKET'] = {board!r}\nbegin_thread(); say('ready')"
        rank = Rank(spawn, tmp_path / str(number), text, HOLDFAST_WITNESS="off")
        assert rank.process.wait() == 0 and rank.process.output() == "ready\n"


LATE = """
import json
def armed():
    prefix = os.environ["FT_RANK_MONITOR_IPC_SOCKET"].removesuffix(".board")
    return json.load(open(prefix + ".armed"))["thread"], os.path.exists(prefix + ".ask")
import torch.distributed.distributed_c10d as c10d
said = c10d._update_default_pg
import torch
dist = torch.distributed
say("before", *armed())
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
say("after", *armed())
say("traces", c10d._update_default_pg is said, c10d._update_default_pg.__name__)
dist.destroy_process_group()
say("end")
"""


def test_the_thread_comes_with_the_first_process_group(spawn: Spawner, tmp_path: Path) -> None:
    rank = Rank(spawn, tmp_path, LATE)
    assert rank.process.wait() == 0, rank.process.err()
    assert rank.process.out().splitlines() == [
        "before False False",
        "after True True",
        "traces False _update_default_pg",
        "end",
    ]


CLIENT = """
import time
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
def here():
    print("ready", flush=True)
    time.sleep(600)
here()
"""


def test_a_client_arms_a_rank_that_is_not_the_launchers(spawn: Spawner, tmp_path: Path) -> None:
    board = Board.create(str(tmp_path / "0.board"), Limits())
    (tmp_path / "link").symlink_to(tmp_path / "0.board")  # as a RankMonitorServer does
    process = spawn.python(CLIENT, env={"FT_RANK_MONITOR_IPC_SOCKET": str(tmp_path / "link")})
    process.wait_for("ready")
    wait_until(lambda: (tmp_path / "0.ask").exists())
    rank = Rank.__new__(Rank)
    rank.prefix, rank.process = str(tmp_path / "0"), process
    rank.within("here")
    (tmp_path / "0.ask").unlink()
    assert rank.ask().stacks_from is StackSource.SIGNAL
    board.close()


AGAIN = """
import json, os, sys, time
from holdfast.fault_tolerance import RankMonitorClient
def there():
    until = time.monotonic() + 10  # the kernel takes a moment for a thread that has ended
    while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < until:
        time.sleep(0.005)
    return sorted(os.listdir("/proc/self/fd"))[:-1], len(os.listdir("/proc/self/task"))
client = RankMonitorClient()
client.init_workload_monitoring()
client.shutdown_workload_monitoring()
before = there()
for _ in range(3):
    client = RankMonitorClient()
    client.init_workload_monitoring()
    number = json.load(open(sys.argv[1]))["signal"]
    client.shutdown_workload_monitoring()
    client = RankMonitorClient()
    client.init_workload_monitoring()
    del client
    os.kill(os.getpid(), number)
print("same", there() == before, os.path.exists(sys.argv[1]), number)
"""


def test_a_client_that_goes_takes_all_of_it_along(spawn: Spawner, tmp_path: Path) -> None:
    board = Board.create(str(tmp_path / "0.board"), Limits())
    env = {"FT_RANK_MONITOR_IPC_SOCKET": board.path}
    process = spawn.python(AGAIN, str(tmp_path / "0.armed"), env=env)
    assert process.wait() == 0, process.err()
    assert process.out() == "same True False 45\n"
    board.close()
