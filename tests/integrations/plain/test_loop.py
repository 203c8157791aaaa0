"""`Loop` in a process without a launcher, on a rank's board, and in the example's and the page's jobs."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from holdfast import Loop, checkpoints
from holdfast.fault_tolerance import FaultToleranceConfig, RankMonitorClientError
from holdfast.fault_tolerance.board import Board
from tests.pages import DOCS, block
from tests.processes import Spawned, Spawner

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "plain_loop.py"


@pytest.fixture
def config() -> FaultToleranceConfig:
    return FaultToleranceConfig()


@pytest.fixture(autouse=True)
def _handler() -> object:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    "own", [{}, {"signals": [signal.SIGUSR1]}], ids=["SIGTERM", "one of the program's own"]
)
def test_alone_it_stops_at_the_next_step_after_sigterm(own: dict[str, Any]) -> None:
    with Loop(**own) as loop:
        assert [loop.step(step) for step in range(3)] == [False] * 3
        os.kill(os.getpid(), signal.SIGTERM)
        assert loop.step(3) and loop.stopped
    os.kill(os.getpid(), signal.SIGTERM)  # a second signal must not end it while it saves


def test_without_a_signal_the_handler_is_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyError), Loop() as loop:
        loop.step()
        raise KeyError
    assert signal.getsignal(signal.SIGTERM) == before
    with pytest.raises(RankMonitorClientError):
        loop.step(1)


def test_several_ranks_without_a_launcher_keep_their_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    before = signal.getsignal(signal.SIGTERM)
    with Loop() as loop:
        assert signal.getsignal(signal.SIGTERM) == before and not loop.step(1)


def test_what_the_board_sees(board: Board) -> None:
    with Loop() as loop:
        with loop.section("setup"):
            pass
        for step in range(1, 4):
            loop.step(step)
        with loop.section("checkpointing"):
            assert [section.name for section in board.snapshot().open_sections] == ["checkpointing"]
        loop.client.start_section("left open")
    seen = board.snapshot()
    assert (seen.heartbeat_count, seen.step, seen.checkpoints, seen.finished) == (3, 3, 1, True)
    assert seen.open_sections == ()


@pytest.mark.parametrize("where", ["step", "loop.section", "sections=True"])
def test_supervision_that_ends_in_a_loop_is_logged_once(
    where: str, board: Board, caplog: pytest.LogCaptureFixture
) -> None:
    """The program has shut down its client; a step that is no number stays an error of the program."""
    with Loop(sections=where == "sections=True") as loop:
        with pytest.raises(RankMonitorClientError, match="a step is an integer"):
            loop.step("one")  # type: ignore[arg-type]
        loop.client.shutdown_workload_monitoring()
        for _ in loop(range(3)):
            if where == "step":
                loop.step(1)
            elif where == "loop.section":
                with loop.section("checkpointing"):
                    pass
    assert caplog.text.count("supervision has ended before the training") == 1


def test_iterating_ends_after_the_step_that_stops() -> None:
    """And no later epoch begins; the job is not finished then."""
    trained = []
    with Loop() as loop:
        for _ in range(2):
            for batch in loop("abcd"):
                trained.append(batch)
                if batch == "b":
                    os.kill(os.getpid(), signal.SIGTERM)
                loop.step(len(trained))
    assert trained == ["a", "b"] and loop.stopped


def test_sections_on_request(board: Board) -> None:
    seen = []

    def batches() -> Iterator[int]:
        for number in range(4):
            seen.append(names())
            yield number

    def names() -> list[str]:
        return [section.name for section in board.snapshot().open_sections]

    with Loop(sections=True) as loop:
        for number in loop(batches()):
            seen.append(names())
            if number % 2:  # two batches make a step
                loop.step()
                seen.append(names())
        assert names() == []
        with pytest.raises(KeyError):
            for _ in loop([1]):
                raise KeyError
        for _ in loop([1, 2, 3]):
            pass
        assert names() == []  # batches that make no whole step
    assert seen == [["data_loading"], ["step"], ["step", "data_loading"], ["step"], []] * 2
    assert names() == []


def test_the_last_checkpoint_of_a_single_process(tmp_path: Path) -> None:
    with Loop() as loop:
        assert loop.last_checkpoint(tmp_path) is None
        torch.save({}, tmp_path / "step-3.pt")
        assert loop.last_checkpoint(tmp_path) == tmp_path / "step-3.pt"


@pytest.mark.parametrize(("rank", "made"), [("0", True), ("1", False)])
def test_the_flag_is_made_by_rank_0(
    rank: str, made: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Loop() as loop:
        loop.finished()  # no flag was asked for
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(tmp_path / "finished"))
    with Loop() as loop:
        loop.finished()
    assert (tmp_path / "finished").exists() == made


def test_the_example_never_removes_its_last_complete_checkpoint(tmp_path: Path) -> None:
    """Two broken ones that are newer do not count as the two that are kept."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = SimpleNamespace(module=model)
    save = runpy.run_path(str(EXAMPLE))["save"]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for step in (5, 10):
            save(tmp_path, step, wrapped, optimizer)
        for broken in (15, 20):
            (tmp_path / f"step-{broken:08d}.pt").write_bytes(b"PK\x03\x04half")
        for step in (11, 12):
            save(tmp_path, step, wrapped, optimizer)
    finally:
        dist.destroy_process_group()
    assert sorted(int(path.stem[5:]) for path in tmp_path.iterdir()) == [11, 12, 15, 20]
    assert checkpoints.last_complete(tmp_path) == tmp_path / "step-00000012.pt"


# -- examples/plain_loop.py and docs/plain-loops-sharded.md's, through a kill, half a checkpoint and a preemption


def start(
    spawn: Spawner, folder: Path, program: str | Path, *words: str, ranks: int = 2, **environment: str
) -> Spawned:
    """A job with this program, or the text of one."""
    if isinstance(program, str):
        (folder / "train.py").write_text(program)
        program = folder / "train.py"
    launcher = [sys.executable, "-m", "holdfast.fault_tolerance.launcher", f"--nproc-per-node={ranks}"]
    options = ["--max-restarts=3", f"--ft-run-dir={folder / 'run'}"]
    return spawn([*launcher, *options, program, *words], env={"OMP_NUM_THREADS": "1", **environment})


@pytest.mark.slow
def test_ddp_through_a_kill_a_hang_and_a_preemption(spawn: Spawner, tmp_path: Path) -> None:
    """Not one step is trained twice or lost by the preemption, and the weights are those of an undisturbed run."""
    flag = tmp_path / "finished"
    environment = {"FAULT_TOL_FINISHED_FLAG_FILE": str(flag)}
    words = (f"--dir={tmp_path / 'a'}", "--step-seconds=0")
    undisturbed = start(spawn, tmp_path, EXAMPLE, *words, **environment)
    assert undisturbed.wait(120) == 0 and flag.exists(), undisturbed.output()
    flag.unlink()

    words = (f"--dir={tmp_path / 'b'}", "--step-seconds=0.4")
    disturbed = {"HOLDFAST_FAULT": "kill@step=12,rank=1;hang@step=17,rank=1,cycle=1"}
    disturbed["PET_FT_RANK_HEARTBEAT_TIMEOUT"] = "8"
    job = start(spawn, tmp_path, EXAMPLE, *words, **environment, **disturbed)
    job.wait_for(r"restarting all 2 local ranks \(restart 2 of 3\)", 150)
    job.wait_for(lambda: (tmp_path / "b" / "step-00000020.pt").exists(), 150)
    assert job.stop(signal.SIGTERM) == 0, job.output()
    assert len(re.findall(r"HANG: rank \d", job.err())) == 1 and "Rank 1" in job.err()
    places = set(re.findall(r"rank \d stops after step (\d+)", job.out()))
    assert len(places) == 1 and job.out().count("stops after step") == 2
    (place,) = map(int, places)
    assert 20 <= place < 40 and (tmp_path / "b" / f"step-{place:08d}.pt").exists() and not flag.exists()

    again = start(spawn, tmp_path, EXAMPLE, words[0], "--step-seconds=0", **environment)
    assert again.wait(120) == 0 and flag.exists(), again.output()
    expected, got = (torch.load(tmp_path / d / "step-00000040.pt") for d in "ab")
    assert expected["step"] == got["step"] == 40
    for name, value in expected["model"].items():
        assert torch.equal(value, got["model"][name]), name


STOPS = """
import signal, time
import holdfast

with holdfast.Loop() as loop:
    print("trains", flush=True)
    step = 0
    while not loop.step(step):
        time.sleep(0.01)
        step += 1
    print("saves", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_ranks_save_for_each_signal_of_a_preemption(spawn: Spawner, tmp_path: Path, number: int) -> None:
    """The launcher forwards both."""
    job = start(spawn, tmp_path, STOPS)
    job.wait_for(lambda: job.out().count("trains") == 2)
    assert job.stop(number) == 0, job.output()
    assert job.out().count("saves") == 2, job.output()


def test_sighup_stays_ignored_under_nohup(spawn: Spawner) -> None:
    raises = "signal.raise_signal(signal.SIGHUP)\n    print(loop.step(0), flush=True)"
    ends = STOPS.replace('print("trains", flush=True)', raises)
    process = spawn.python("import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)" + ends)
    process.wait_for("False")
    assert process.stop(signal.SIGTERM) == 0 and "saves" in process.out()


STRAGGLING = """
import os, time
import holdfast
import torch.distributed as dist

dist.init_process_group("gloo")

def batches():
    for number in range(400):
        time.sleep(0.02 if dist.get_rank() == 1 else 0.005)
        yield number

with holdfast.Loop(straggler={"report_time_interval": 1}) as loop:
    for number in loop(batches()):
        dist.barrier()
        loop.step(number + 1)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_straggler_is_logged(spawn: Spawner, tmp_path: Path) -> None:
    job = start(spawn, tmp_path, STRAGGLING, ranks=3)
    assert job.wait(120) == 0, job.output()
    assert "STRAGGLER: rank 1 (" in job.err() and "section data_loading" in job.err()


@pytest.mark.slow
def test_fsdp_with_half_a_checkpoint_on_the_way(spawn: Spawner, tmp_path: Path) -> None:
    program = block("plain-loops-sharded.md", "train_fsdp.py")
    results = []
    for name, fault in {"undisturbed": "", "disturbed": "half_save@step=15,rank=1,size=3000"}.items():
        job = start(spawn, tmp_path, program, str(tmp_path / name), HOLDFAST_FAULT=fault)
        assert job.wait(120) == 0, job.output()
        results.append(re.findall(r"^step 30, weights (\S+)$", job.out(), re.MULTILINE))
    assert "killed by SIGXFSZ" in job.err()
    skipped = r"checkpoint skipped, resuming from step-00000010: \S+/step-00000015 has no .metadata"
    assert re.search(skipped, job.err())
    assert len(results[0]) == 1 and results[0] == results[1]


@pytest.mark.variant
@pytest.mark.slow
def test_accelerate_with_half_a_checkpoint_on_the_way(spawn: Spawner, tmp_path: Path) -> None:
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed")
    program = block("plain-loops-sharded.md", "train_accelerate.py")
    fault = "half_save@step=15,rank=0,size=1000"
    job = start(spawn, tmp_path, program, str(tmp_path / "saved"), HOLDFAST_FAULT=fault)
    assert job.wait(150) == 0, job.output()
    assert "step-00000015.partial was not finished, according to its name" in job.err()
    assert "step 20, from step-00000010" in job.out()
    names = [f"step-{step:08d}" for step in (5, 10, 15, 20)]
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == names


def test_the_loop_on_the_page_is_one() -> None:
    """It runs with a training of nothing."""
    page = (DOCS / "plain-loops.md").read_text()
    snippet = page[page.index("```python\n") + 10 :].partition("```")[0]
    trained: list[int] = []
    names = {"load": lambda path: 0, "save": lambda step: None, "train": trained.append, "loader": range(5)}
    exec(compile(snippet, "plain-loops.md", "exec"), names)
    assert trained == [0, 1, 2, 3, 4] and not names["loop"].stopped  # type: ignore[attr-defined]
