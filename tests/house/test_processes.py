"""The kit for processes: output is kept, waits end with the event or say what was seen instead."""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.processes import Spawner, alive, wait_until


def test_output_and_exit_code(spawn: Spawner) -> None:
    done = spawn.python("import sys; print('to out'); print('to err', file=sys.stderr); sys.exit(3)")
    assert done.wait() == 3
    assert (done.out(), done.err()) == ("to out\n", "to err\n")


def test_wait_for_returns_the_match(spawn: Spawner) -> None:
    running = spawn.python("import time; print('step 12', flush=True); time.sleep(600)")
    assert running.wait_for(r"^step (\d+)$").group(1) == "12"
    assert running.stop() == -signal.SIGTERM


def test_wait_for_sees_the_last_words_of_a_process_that_ended(spawn: Spawner) -> None:
    done = spawn.python("print('last')")
    done.wait()
    assert done.wait_for("last")


def test_wait_for_fails_with_what_was_printed_instead(spawn: Spawner) -> None:
    done = spawn.python("print('something else')")
    with pytest.raises(
        pytest.fail.Exception, match=r"(?s)ended with 0 and did not show 'step'.*something else"
    ):
        done.wait_for("step")


def test_wait_for_fails_at_its_ceiling(spawn: Spawner) -> None:
    running = spawn(["sleep", "600"])
    with pytest.raises(pytest.fail.Exception, match=r"did not show 'step' within 0.05 s"):
        running.wait_for("step", ceiling=0.05)


def test_environment_is_laid_over_and_taken_out(spawn: Spawner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_A", "old")
    monkeypatch.setenv("HOLDFAST_B", "old")
    code = "import os; print(os.environ.get('HOLDFAST_A'), os.environ.get('HOLDFAST_B'))"
    done = spawn.python(code, env={"HOLDFAST_A": "new", "HOLDFAST_B": None})
    done.wait()
    assert done.out() == "new None\n"


def test_the_whole_group_is_killed_at_the_end(spawn: Spawner) -> None:
    code = (
        "import subprocess, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
    )
    started = spawn.python(code)
    child = int(started.wait_for(r"^\d+$").group())
    spawn.end_all()
    wait_until(lambda: not alive(child), what="the end of the child")
    assert started.returncode == -signal.SIGKILL


def test_a_wait_in_vain_says_where_the_processes_are(spawn: Spawner) -> None:
    inner = "import time\ndef asleep(): time.sleep(99)\nprint('up', flush=True)\nasleep()"
    outer = spawn.python(f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])")
    outer.wait_for("up")
    with pytest.raises(pytest.fail.Exception) as failed:
        outer.wait(0.1)
    report = str(failed.value)
    assert report.count("\n-- ") == 2 and "thread" in report
    if shutil.which("py-spy", path=str(Path(sys.executable).parent)):
        assert "asleep (<string>:2)" in report
