"""`make demo` as a person runs it, to its end and with Ctrl-C; its training under plain torchrun; and its parts."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.jobs import TORCHRUN
from tests.processes import Spawned, Spawner

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FOLDER = EXAMPLES / "char_transformer"
TRAIN = FOLDER / "train.py"


def load(name: str) -> ModuleType:
    """`load("data")` is examples/char_transformer/data.py."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def demo(spawn: Spawner, tmp_path: Path) -> Spawned:
    return spawn([sys.executable, EXAMPLES / "demo.py"], env={"TMPDIR": str(tmp_path)})


@pytest.mark.slow
def test_demo_survives_a_hang_and_a_kill_with_the_same_result(demo: Spawned, tmp_path: Path) -> None:
    assert demo.wait(ceiling=500) == 0, demo.output()
    assert re.search(r"HANG: rank 1 .* Section 'data_loading' did not end", demo.err())
    assert len(set(re.findall(r"final loss (\d\.\d{6})", demo.out()))) == 1
    assert "Both runs ended with the same weights, bit for bit." in demo.out()
    summary = demo.out().partition("== Summary")[2]
    incident = r"\d\d:\d\d:\d\d  (\w+), rank (\d), .*\n +restarted \((\d) of 3\), (\S+) s lost"
    incidents = re.findall(incident, summary)
    assert [incident[:3] for incident in incidents] == [("hang", "1", "1"), ("crash", "0", "2")]
    assert 3.0 <= float(incidents[0][3]) < 60
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("step   10 of 80", signal.SIGINT),
        pytest.param("rank 1.* happens now", signal.SIGTERM, marks=pytest.mark.variant),
    ],
)
def test_it_can_be_stopped_at_any_moment(demo: Spawned, tmp_path: Path, moment: str, number: int) -> None:
    demo.wait_for(moment, 150)  # as long as the whole demo gets
    assert demo.stop(number) == 128 + number, demo.output()
    assert "nothing is left behind" in demo.out()
    assert "Traceback" not in demo.output()
    assert list(tmp_path.iterdir()) == []  # The leak check after each test looks for everything else.


STEPS = 12

Run = Callable[..., str]


@pytest.fixture
def torchrun(spawn: Spawner, tmp_path: Path) -> Run:
    """A training that ends with this exit code; its standard output."""
    # torch leaves folders in the temporary directory when its ranks fail.
    environ = {"OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}

    def run(directory: Path, code: int = 0, *, ranks: int = 2, fault: str | None = None) -> str:
        command = [*TORCHRUN, "--standalone", f"--nproc-per-node={ranks}", TRAIN]
        arguments = ["--dir", directory, "--steps", str(STEPS), "--batch-size", "4"]
        training = spawn([*command, *arguments], env={**environ, "HOLDFAST_FAULT": fault})
        assert training.wait() == code, training.output()
        return training.out()

    return run


def result(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "result.json").read_text())
    assert found["steps"] == STEPS
    return found


@pytest.mark.slow
@pytest.mark.variant
def test_a_killed_and_resumed_run_equals_an_undisturbed_one(torchrun: Run, tmp_path: Path) -> None:
    # Three ranks: of two gradients there is one sum only, in whatever order they are added.
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    torchrun(undisturbed, ranks=3)
    # Dies at step 10, before it is saved: step 5 is still the last one that was.
    torchrun(killed, 1, ranks=3, fault="kill@step=10,rank=0,point=checkpointing")
    assert "resumed from the checkpoint of step 5" in torchrun(killed, ranks=3)
    assert result(killed) == result(undisturbed)


@pytest.mark.slow
def test_a_checkpoint_of_another_number_of_ranks_is_resumed(torchrun: Run, tmp_path: Path) -> None:
    torchrun(tmp_path / "run", 1, fault="kill@step=8,rank=1")
    assert "the checkpoint is of 2 ranks" in torchrun(tmp_path / "run", ranks=1)
    assert result(tmp_path / "run")


# -- the example's checkpoints are complete or absent whenever the writer dies; its text, and the order of batches


checkpoint = load("checkpoint")

SAVING = f"""
import sys
sys.path.insert(0, {str(FOLDER)!r})
import checkpoint, pathlib, torch
for step in range(1, 100000):
    checkpoint.save(pathlib.Path(sys.argv[1]), step, {{"step": step, "model": torch.full((200_000,), step)}})
    print("saved", step, flush=True)
"""


def test_two_are_kept_and_a_damaged_one_is_skipped(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert checkpoint.load_newest(tmp_path) is None
    for step in (5, 10, 15, 100):
        checkpoint.save(tmp_path, step, {"step": step, "model": torch.arange(1000)})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000015.pt", "step-00000100.pt"]
    state = checkpoint.load_newest(tmp_path)
    assert state["step"] == 100 and torch.equal(state["model"], torch.arange(1000))
    newest = tmp_path / "step-00000100.pt"
    newest.write_bytes(newest.read_bytes()[:-100])
    (tmp_path / "step-00000110.pt.tmp").write_bytes(b"PK")
    assert checkpoint.load_newest(tmp_path)["step"] == 15
    assert capfd.readouterr().err.startswith("skipped step-00000100.pt, it cannot be read: ")
    assert not list(tmp_path.glob("*.tmp"))


def test_damaged_ones_of_later_steps_make_no_good_one_go(tmp_path: Path) -> None:
    for step in (5, 10):
        checkpoint.save(tmp_path, step, {"step": step})
    for step in (20, 25):
        (tmp_path / f"step-{step:08d}.pt").write_bytes(b"no checkpoint")
    checkpoint.save(tmp_path, 15, {"step": 15})
    assert checkpoint.load_newest(tmp_path)["step"] == 15 and checkpoint.load(tmp_path, 10)["step"] == 10


def test_a_writer_that_is_killed_leaves_a_complete_one(spawn: Spawner, tmp_path: Path) -> None:
    writer = spawn.python(SAVING, str(tmp_path))
    writer.wait_for("saved 20$")
    assert writer.stop(signal.SIGKILL) == -signal.SIGKILL
    state = checkpoint.load_newest(tmp_path)
    last_said = int(writer.out().split()[-1])
    assert state["step"] >= last_said
    assert torch.equal(state["model"], torch.full((200_000,), state["step"]))


data = load("data")


def batches(rank: int = 0, world_size: int = 1, windows: int = 24, batch_size: int = 2) -> Any:
    """`Batches` of the example, which is loaded by its path, over a text in which every character is its position."""
    return data.Batches(torch.arange(windows * 4 + 1), 4, batch_size, rank, world_size, seed=7)


def test_text_is_source_code_and_the_same_each_time() -> None:
    text = data.load_text(200_000)
    assert len(text) == 200_000
    assert torch.equal(text, data.load_text(200_000))
    assert text.max() < data.VOCABULARY
    assert "def " in bytes(text.tolist()).decode("ascii")


def test_a_batch_is_a_function_of_the_step() -> None:
    """And what follows a character is the next one."""
    read_in_order = batches()
    for step in range(30):
        characters, following = read_in_order.at(step)
        assert torch.equal(characters + 1, following)
    assert torch.equal(read_in_order.at(30)[0], batches().at(30)[0])


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_the_ranks_read_each_window_once_in_an_epoch(world_size: int) -> None:
    ranks = [batches(rank, world_size) for rank in range(world_size)]
    steps = 24 // (2 * world_size)
    first = torch.cat([rank.at(step)[0][:, 0] for rank in ranks for step in range(steps)])
    assert sorted(first.tolist()) == list(range(0, 96, 4))


def test_each_epoch_has_an_order_of_its_own() -> None:
    order = batches()
    one, two = (torch.cat([order.at(step)[0][:, 0] for step in range(at, at + 12)]) for at in (0, 12))
    assert sorted(one.tolist()) == sorted(two.tolist())
    assert not torch.equal(one, two)
