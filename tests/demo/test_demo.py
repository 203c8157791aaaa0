"""`make demo` as a person runs it, to its end and with Ctrl-C; its training under plain torchrun."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.demo.example import EXAMPLES, TRAIN
from tests.processes import Spawned, Spawner

pytestmark = pytest.mark.slow


@pytest.fixture
def demo(spawn: Spawner, tmp_path: Path) -> Spawned:
    return spawn([sys.executable, EXAMPLES / "demo.py"], env={"TMPDIR": str(tmp_path)})


def test_it_survives_a_hang_and_a_kill_and_ends_as_the_undisturbed_run(demo: Spawned, tmp_path: Path) -> None:
    assert demo.wait(ceiling=150) == 0, demo.output()
    assert re.search(r"HANG: rank 1 .* Section 'data_loading' did not end", demo.err())
    assert len(set(re.findall(r"final loss (\d\.\d{6})", demo.out()))) == 1
    assert "Both runs ended with the same weights, bit for bit." in demo.out()
    summary = demo.out().partition("== Summary")[2]
    incidents = re.findall(
        r"\d\d:\d\d:\d\d  (\w+), rank (\d), .*\n +restarted \((\d) of 3\), (\S+) s lost", summary
    )
    assert [incident[:3] for incident in incidents] == [("hang", "1", "1"), ("crash", "0", "2")]
    assert 3.0 <= float(incidents[0][3]) < 60
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("step   10 of 80", signal.SIGINT),
        ("== 2", signal.SIGTERM),
        pytest.param("rank 1.* happens now", signal.SIGINT, marks=pytest.mark.variant),
    ],
)
def test_it_can_be_stopped_at_any_moment(demo: Spawned, tmp_path: Path, moment: str, number: int) -> None:
    demo.wait_for(moment, 150)  # as long as the whole demo gets
    assert demo.stop(number) == 128 + number, demo.output()
    assert "nothing is left behind" in demo.out()
    assert "Traceback" not in demo.output()
    assert list(tmp_path.iterdir()) == []  # The leak check after each test looks for everything else.


STEPS = 12

Start = Callable[..., Spawned]


@pytest.fixture
def torchrun(spawn: Spawner, tmp_path: Path) -> Start:
    # torch leaves folders in the temporary directory when its ranks fail.
    environ = {"OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}

    def start(directory: Path, *, ranks: int = 2, fault: str | None = None) -> Spawned:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        arguments = ["--dir", directory, "--steps", str(STEPS), "--batch-size", "4"]
        return spawn([*command, TRAIN, *arguments], env={**environ, "HOLDFAST_FAULT": fault})

    return start


def ends_with(run: Spawned, code: int) -> str:
    assert run.wait() == code, run.output()
    return run.out()


def result(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "result.json").read_text())
    assert found["steps"] == STEPS
    return found


@pytest.mark.variant
def test_a_killed_and_resumed_run_equals_an_undisturbed_one(torchrun: Start, tmp_path: Path) -> None:
    # Three ranks: of two gradients there is one sum only, in whatever order they are added.
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    ends_with(torchrun(undisturbed, ranks=3), 0)
    # Dies at step 10, before it is saved: step 5 is still the last one that was.
    ends_with(torchrun(killed, ranks=3, fault="kill@step=10,rank=0,point=checkpointing"), 1)
    assert "resumed from the checkpoint of step 5" in ends_with(torchrun(killed, ranks=3), 0)
    assert result(killed) == result(undisturbed)


def test_a_checkpoint_of_another_number_of_ranks_is_gone_on_from_and_said(
    torchrun: Start, tmp_path: Path
) -> None:
    ends_with(torchrun(tmp_path / "run", fault="kill@step=8,rank=1"), 1)
    assert "the checkpoint is of 2 ranks" in ends_with(torchrun(tmp_path / "run", ranks=1), 0)
    assert result(tmp_path / "run")
