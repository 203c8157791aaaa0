"""`make demo` as a person runs it: to its end, and with Ctrl-C in the middle."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest

from tests.demo.example import EXAMPLES
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
