"""The comparison with torchrun and NVRx: what its page says of what was measured, and that its faults can be done."""

from __future__ import annotations

import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import psutil
import pytest

from benchmarks import environments
from benchmarks.compare import figures as measuring
from benchmarks.compare.faults import FAULTS, Outcome, ended
from benchmarks.compare.figures import Contender, Figure
from benchmarks.compare.page import conditions, tables
from benchmarks.jobs import send
from benchmarks.table import filled
from tests.processes import Spawner

ROOT = Path(__file__).resolve().parents[2]
PATHS = f"{ROOT}:{ROOT / 'src'}"
NAMES = {"torchrun": "torchrun", "nvrx": "NVRx 0.4.1", "holdfast": "Holdfast"}
MARKS = "<!-- measured -->", "<!-- end -->"
HOLDFAST = Contender(
    "holdfast",
    "Holdfast",
    sys.executable,
    "holdfast.fault_tolerance.launcher",
    "holdfast",
    "holdfast.fault_tolerance",
)


def test_the_best_is_marked_and_what_somebody_lacks_is_a_dash() -> None:
    figures = [
        Figure("start", "s", {"torchrun": 1.0, "nvrx": 2.0, "holdfast": 0.5}),
        Figure("heartbeat", "µs", {"nvrx": 50.0, "holdfast": 0.7}),
        Figure("installed", "MB", {"torchrun": 0.0, "nvrx": 1234.0, "holdfast": 0.0}),
    ]
    text = tables(NAMES, figures, {})
    assert "| start | 1 s | 2 s | **0.5 s** |" in text
    assert "| heartbeat | – | 50 µs | **0.7 µs** |" in text
    assert "| installed | **0 MB** | 1234 MB | 0 MB |" in text
    assert text.endswith("In none of these figures, in this run.")


def test_what_was_measured_takes_the_place_of_what_was() -> None:
    begin, end = MARKS
    once = filled(f"Title\n\n{begin}\n{end}\nMore\n", "first", *MARKS)
    assert filled(once, "second", *MARKS) == f"Title\n\n{begin}\nsecond\n{end}\nMore\n"
    with pytest.raises(ValueError, match="no place for it"):
        filled("Title\n", "first", *MARKS)


def test_where_holdfast_is_worse_is_said() -> None:
    figures = [
        Figure("memory", "MiB", {"torchrun": 100.0, "holdfast": 120.0}),
        Figure("start", "s", {"torchrun": 1.0, "nvrx": 0.99, "holdfast": 1.03}),  # within the noise
    ]
    faults = {
        "killed": {"torchrun": Outcome("lives on", False), "holdfast": Outcome("ended", True)},
        "hung": {"torchrun": Outcome("has no limits", None), "holdfast": Outcome("not found", False)},
    }
    text = tables(NAMES, figures, faults)
    assert "| killed | ✗ lives on | – | ✓ ended |" in text
    assert text.partition("Holdfast is worse\n\n")[2].splitlines() == [
        "- memory: 120 MiB, torchrun 100 MiB",
        "- hung: not found",
    ]


def test_a_contender_that_fails_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(contender: Contender) -> measuring.Measured:
        tries[contender.who] = tries.get(contender.who, 0) + 1
        if contender.who == "nvrx" or (contender.who == "holdfast" and tries["holdfast"] == 2):
            raise RuntimeError("no ranks")
        yield Figure("start", "s"), 2.0

    tries: dict[str, int] = {}
    monkeypatch.setattr(measuring, "PARTS", (start,))
    three = tuple(Contender(who, name, "", "", "") for who, name in NAMES.items())
    text = tables(NAMES, measuring.figures(three, 2), {})
    assert tries == {"torchrun": 2, "nvrx": 2, "holdfast": 2}
    assert "| start | **2 s** | failed | 2 s (a run failed) |" in text
    assert text.endswith("- start: a run failed")


def test_who_is_missing_is_said() -> None:
    assert "NVRx" not in conditions(NAMES, 1) and "no GPU" not in conditions(NAMES, 1)
    assert "Holdfast's own list" in conditions(NAMES, 1)
    alone = conditions({"torchrun": "torchrun", "holdfast": "Holdfast"}, 0)
    assert "has no GPU" in alone and alone.endswith(
        "NVRx 0.4.1 could not be installed here, and is left out."
    )


def test_a_launcher_that_does_not_end_has_no_exit_code() -> None:
    assert ended(3) == "exit code 3"
    assert ended(None) == "still runs after 90 s"


def test_a_process_that_is_gone_gets_no_signal() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    process = psutil.Process(gone.pid)
    gone.wait()
    send(signal.SIGTERM, [process])


@pytest.mark.variant
def test_what_changes_is_installed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a later run would measure what was there at the first one."""
    monkeypatch.setattr(environments, "BUILD", tmp_path)
    for version, anew, seen in ("1.0", False, "1.0"), ("2.0", False, "1.0"), ("2.0", True, "2.0"):
        info = f"thing_of_this_test-{version}.dist-info"
        wheel = tmp_path / f"thing_of_this_test-{version}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(
                f"{info}/METADATA", f"Metadata-Version: 2.1\nName: thing-of-this-test\nVersion: {version}\n"
            )
            archive.writestr(
                f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            archive.writestr(f"{info}/RECORD", f"{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
        python = environments.beside("here", [str(wheel)], anew=anew)
        ask = "import importlib.metadata as m; print(m.version('thing-of-this-test'))"
        assert subprocess.check_output([python, "-c", ask], text=True).strip() == seen


DRAW = """
import sys
from pathlib import Path
from benchmarks.compare.figures import Figure
from benchmarks.compare.page import draw
figures = [
    Figure("start", "s", {"torchrun": 1.0, "holdfast": 0.5}, panel="start, s"),
    Figure("installed", "MB", {"torchrun": 0.0, "holdfast": 0.0}, panel="installed, MB"),
    Figure("lines", "", {"torchrun": 0.0}),
]
for path in sys.argv[1:]:
    draw({"torchrun": "torchrun", "holdfast": "Holdfast"}, figures, Path(path))
"""


def test_the_plot_has_the_panels_and_is_the_same_again(spawn: Spawner, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    process = spawn.python(DRAW, str(tmp_path / "a"), str(tmp_path / "b"), env={"PYTHONPATH": PATHS})
    assert process.wait() == 0, process.output()
    text = (tmp_path / "a").read_text()
    assert text == (tmp_path / "b").read_text()
    assert "start, s" in text and "installed, MB" in text and "lines" not in text


QUICK = (
    "both ranks exit with 3",
    "the launcher is killed with -9",
    "SIGTERM to every process at once (preemption)",
    "a misspelt key in the YAML",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "what", [what if what in QUICK else pytest.param(what, marks=pytest.mark.variant) for what in FAULTS]
)
def test_a_fault_is_done_and_judged(what: str) -> None:
    assert FAULTS[what](HOLDFAST).good is True
