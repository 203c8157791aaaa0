"""What a test that waited in vain says of its processes: it is read once, when nothing else is left to look at."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.processes import Spawner
from tests.stacks import where_they_are

WAITS = """
import subprocess, time

def in_vain():
    time.sleep(60)

child = subprocess.Popen(["sleep", "60"])
print("ready", flush=True)
in_vain()
"""


def test_a_process_and_its_child_are_found(spawn: Spawner) -> None:
    job = spawn.python(WAITS)
    job.wait_for("ready")
    text = "\n".join(where_they_are(job.pid))
    assert f"-- {job.pid} (" in text and ") sleep 60" in text and f"thread {job.pid} " in text
    if shutil.which("py-spy", path=str(Path(sys.executable).parent)):
        assert "in_vain (" in text
    job.kill()
    assert where_they_are(job.pid) == []
