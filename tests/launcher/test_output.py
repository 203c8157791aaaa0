"""Where output goes: files and copies of ranks, as under torchrun; last lines; the writer that never blocks.

Does not cover: the writer of a real job, test_cycle_log.py and test_hung_disks.py.
"""

from __future__ import annotations

import dataclasses
import fcntl
import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std

from holdfast.fault_tolerance.launcher import writer as module
from holdfast.fault_tolerance.launcher.ranks import failures, output
from holdfast.fault_tolerance.launcher.ranks.output import RankOutput
from holdfast.fault_tolerance.launcher.ranks.rank_environment import PROLOGUE
from holdfast.fault_tolerance.launcher.writer import AppendedFile, Stream, Writer
from tests.jobs import Jobs, run_twins, tree
from tests.processes import Spawner, wait_until

PRINTS = """
print(f"out of {RANK}, cycle {CYCLE}")
print(f"err of {RANK}, cycle {CYCLE}", file=sys.stderr)
meet()
sys.exit(0 if CYCLE else RANK)
"""


HEAD = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d{4} \S+ "


def test_same_output_and_same_files(jobs: Jobs) -> None:
    """All combinations are compared without processes: test_output.py."""
    text = PRINTS.replace("meet()\nsys.exit(0 if CYCLE else RANK)\n", "")
    flags = ("--log-dir", "logs-{who}", "--tee", "0:3,1:1", "--redirects", "1:2", "--role", "trainer")
    twins = run_twins(jobs, "--nproc-per-node", "2", *flags, jobs.script(text))
    twins.same_output()
    ours, theirs = ({line for line in each.err().splitlines() if "err of" in line} for each in twins)
    assert ours == theirs
    files = [tree(jobs.folder / f"logs-{who}") for who in ("ours", "theirs")]
    assert files[0] == files[1] and files[0]


def test_each_restart_has_a_folder_of_its_own(jobs: Jobs) -> None:
    """And the lines of the launcher are appended to its log."""
    log = jobs.folder / "ft.log"
    log.write_text("kept\n")
    flags = ("--max-restarts", "1", "--log-dir", "logs", "--redirects", "3")
    job = jobs(PRINTS, *flags, env={"PET_FT_NVRX_LOGFILE": "ft.log"})
    job.end(0)
    written = tree(jobs.folder / "logs")
    for cycle in range(2):
        for rank in range(2):
            folder = f"RUN/attempt_{cycle}/{rank}"
            assert written[f"{folder}/stdout.log"] == f"out of {rank}, cycle {cycle}\n"
            assert f"err of {rank}, cycle {cycle}\n" in written[f"{folder}/stderr.log"]
    first, *lines = log.read_text().splitlines()
    assert first == "kept"
    assert [re.sub(f"^{HEAD}", "", line) for line in lines] == job.said()
    assert all(re.match(f"{HEAD}\\[holdfast\\] ", line) for line in lines)


def test_without_a_log_dir_nothing_is_left_in_the_temporary_folder(jobs: Jobs, tmp_path: Path) -> None:
    """torchrun leaves a folder there; here the streams are kept in the run directory. torch's file timer is a thread
    and a FIFO for each cycle."""
    text = """
import glob
print("sees", len(glob.glob(os.environ["TMPDIR"] + "/watchdog_timer_*")))
sys.exit(3 if CYCLE < 2 else 0)
"""
    (tmp_path / "tmp").mkdir()
    env = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TMPDIR": str(tmp_path / "tmp")}
    job = jobs(text, "--max-restarts", "2", "--redirects", "1", nproc=1, env=env)
    job.end(0)
    assert list(tree(job.run_dir / "logs").values()) == ["sees 1\n"] * 3
    assert not list((tmp_path / "tmp").iterdir())


# -- the ranks' log files, which equal those of torch's own LogsSpecs, and the copies of their lines


def given(folder: Path | str, **more: object) -> SimpleNamespace:
    options: dict[str, object] = {
        "log_dir": str(folder),
        "redirects": "0",
        "tee": "0",
        "local_ranks_filter": "",
    }
    options |= {"logs_specs": None, "role": "trainer", "log_line_prefix_template": ""}
    options |= {"duplicate_stdout_filters": [], "duplicate_stderr_filters": []}
    return SimpleNamespace(**options | more)


def environments(count: int, cycle: int = 0) -> dict[int, dict[str, str]]:
    shared = {"TORCHELASTIC_RUN_ID": "run", "TORCHELASTIC_RESTART_COUNT": str(cycle)}
    return {local: {**shared, "RANK": str(8 + local)} for local in range(count)}


STREAMS = ["0", "1", "2", "3", "0:3,1:1", "1:2"]


@pytest.mark.parametrize("where", ["logs", os.devnull])
def test_files_are_those_of_torchs_own_specs(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number, (redirects, tee, shown) in enumerate(itertools.product(STREAMS, STREAMS, ["", "1"])):
        ranks = {int(shown)} if shown else None
        place = where if where == os.devnull else f"{where}{number}"
        specs = DefaultLogsSpecs(place, Std.from_str(redirects), Std.from_str(tee), ranks)
        ours = RankOutput(given(place, redirects=redirects, tee=tee, local_ranks_filter=shown))
        mine, theirs = environments(2, number), environments(2, number)
        ours.prepare(mine)
        dest = dataclasses.asdict(specs.reify(theirs))
        if place == os.devnull:
            dest["filtered_stdout"] = dest["filtered_stderr"] = ""  # relative to nowhere, and never opened

        def masked(text: object, made: list[Path]) -> str:
            return str(text).replace(made[0].name, "RUN").replace(made[-1].name, "RUN") if made else str(text)

        made = sorted(Path(place).iterdir()) if place != os.devnull else []
        found = {name: value for name, value in dataclasses.asdict(ours.files).items() if name in dest}
        assert masked(found, made) == masked(dest, made), (redirects, tee, shown)
        assert masked(mine, made) == masked(theirs, made)
        if made:
            assert len(made) == 2 and all(each.name.startswith("run_") for each in made)
            trees = [[str(path.relative_to(each)) for path in sorted(each.rglob("*"))] for each in made]
            assert trees[0] == trees[1] and trees[0]


def tee(folder: Path, *chunks: bytes, **more: object) -> tuple[str, str]:
    """What is copied of a rank that writes these bytes, one after the other: to stdout, and to the filtered file."""
    copied = RankOutput(given(folder, tee="1", **more))
    ranks = environments(1)
    copied.prepare(ranks)
    with open(folder / "stdout", "w+") as stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", stream)
        copied.copy(ranks)
        with open(copied.files.stdouts[0], "wb", buffering=0) as file:
            for chunk in chunks:
                file.write(chunk)
                time.sleep(0.11 if len(chunks) > 1 else 0)  # so that it is copied by itself
        copied.end()
        stream.seek(0)
        filtered = Path(copied.files.filtered_stdout)
        return stream.read(), filtered.read_text() if filtered.exists() else ""


def test_lines_are_copied_whole(tmp_path: Path) -> None:
    """Also those that end in a carriage return, that come in pieces, and the last without an end."""
    found, _ = tee(tmp_path, b"10 %\r20 %\r", "\nä".encode()[:2], "ä".encode()[1:] + b"b\xff\nno end")
    assert found == "[trainer0]:10 %\n[trainer0]:20 %\n[trainer0]:äb\ufffd\n[trainer0]:no end"


def test_what_the_stream_cannot_encode_is_escaped_and_ends_no_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, ranks = RankOutput(given(tmp_path, tee="1", role="prüfer")), environments(2)
    copied.prepare(ranks)
    for local, text in enumerate(["✓ a\nb\n", "c\nd"]):
        Path(copied.files.stdouts[local]).write_text(text, encoding="utf-8")
    with open(tmp_path / "stdout", "w+", encoding="ascii") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        copied.copy(ranks)
        copied.end()
        stream.seek(0)
        first, second = (rf"[pr\xfcfer{local}]:" for local in range(2))
        assert stream.read() == rf"{first}\u2713 a" f"\n{first}b\n{second}c\n{second}d"


def test_prefix_and_filter_are_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"an apple\na pear\nan orange\n"
    monkeypatch.setenv(output.TEMPLATE, "${role_name} ${rank}/${local_rank} ${other}: ")
    found, filtered = tee(tmp_path, text, duplicate_stdout_filters=["apple", "range"])
    prefix = "trainer 8/0 ${other}: "
    assert found == f"{prefix}an apple\n{prefix}a pear\n{prefix}an orange\n"
    assert filtered == f"{prefix}an apple\n{prefix}an orange\n"
    found, _ = tee(tmp_path, b"x\n", log_line_prefix_template="[${rank}] ")
    assert found == "[8] x\n"


# -- the last lines of stderr


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
        until = time.monotonic() + 30.0
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
    assert program.err() == "line 0 grün\nline 1 grün\nline 2 grün\na child\nnative\nthe end"


# -- the writer that never blocks, with real files: order, lost lines, the lock, torn lines


Troubles = list[tuple[str, str]]


@pytest.fixture
def troubles() -> Troubles:
    return []


@pytest.fixture
def writer(troubles: Troubles) -> Iterator[Writer]:
    made = Writer("test-writer", lambda *trouble: troubles.append(trouble), capacity=1300)
    yield made
    made.close(60)


def test_lost_lines_are_counted_at_their_place(writer: Writer, troubles: Troubles) -> None:
    reader, descriptor = os.pipe()
    os.write(descriptor, b"." * 65536)  # full
    stream = Stream(descriptor)
    writer.put(stream, b"first\n")
    wait_until(lambda: writer._in_hand, what="the write")
    writer.put(stream, b"x" * 990 + b"\n")
    for _ in range(3):
        writer.put(stream, b"lost\nlost\n")
    assert troubles == [("standard error", "it does not take lines as fast as they come")]
    assert len(os.read(reader, 65536)) == 65536
    assert writer.drain(60)
    writer.put(stream, b"later\n")
    assert writer.drain(60)
    lost = b"[holdfast] 6 lines lost: standard error was not read\n"
    assert os.read(reader, 65536) == b"first\n" + b"x" * 990 + b"\n" + lost + b"later\n"
    os.close(reader)
    os.close(descriptor)


def test_stream_whose_reader_is_gone_takes_everything(writer: Writer, troubles: Troubles) -> None:
    reader, descriptor = os.pipe()
    os.close(reader)
    for _ in range(100):
        writer.put(Stream(descriptor), b"x" * 100 + b"\n")
        assert writer.drain(60)
    os.close(descriptor)
    assert not troubles


def test_folder_that_comes_back_gets_all_lines(writer: Writer, troubles: Troubles, tmp_path: Path) -> None:
    path = tmp_path / "later" / "log"
    file = AppendedFile(str(path), "n")
    writer.put(file, b"one\n")
    wait_until(lambda: troubles, what="the error")
    writer.put(file, b"two\n")
    path.parent.mkdir()
    assert writer.drain(60)
    assert path.read_bytes() == b"one\ntwo\n" and len(troubles) == 1
    writer.end(file)


HOLDS = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("limit", [60.0, 0.1])
def test_lock_of_another_launcher_is_waited_for(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: float
) -> None:
    """It may be stopped while it holds the lock: then not forever."""
    monkeypatch.setattr(module, "LOCK_WAIT", limit)
    path = tmp_path / "log"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout and holder.stdout.readline() == b"held\n"
    file = AppendedFile(str(path), "n")
    writer.put(file, b"line\n")
    if limit < 1:
        assert writer.drain(60)
    else:
        assert not writer.drain(0.3) and not path.read_bytes()
    assert holder.stdin
    holder.communicate()
    assert writer.drain(60)
    assert path.read_bytes() == b"line\n"
    writer.end(file)


def test_patient_caller_loses_nothing_on_a_slow_target(
    writer: Writer, troubles: Troubles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 60.0)  # the reader may take a while to start
    reader, descriptor = os.pipe()
    fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, 4096)
    copy = subprocess.Popen(
        [sys.executable, "-c", "import time\nwhile __import__('os').read(0, 4096): time.sleep(0.01)"],
        stdin=reader,
    )
    os.close(reader)
    for _ in range(200):
        writer.put(Stream(descriptor), b"x" * 499 + b"\n", is_patient=True)
    assert writer.drain(60) and not troubles
    os.close(descriptor)
    assert copy.wait(60) == 0
