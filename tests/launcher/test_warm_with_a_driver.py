"""Warm start where there is an NVIDIA driver: by the file that a driver shows, in a /dev of the test's own."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from holdfast.fault_tolerance.launcher.warm.gpu_evidence import PASSED
from holdfast.fault_tolerance.launcher.warm.plan import NOT_TESTED
from tests.launcher.conftest import LAUNCHER
from tests.processes import Spawner

# What a training needs of /dev, and the sign of a driver. A container may have no /proc/driver/nvidia.
OWN_DEV = """
set -e
dev=$1; shift
mount -t tmpfs none "$dev"
for name in null zero full random urandom; do touch "$dev/$name"; mount --bind "/dev/$name" "$dev/$name"; done
mkdir "$dev/shm"; mount --bind /dev/shm "$dev/shm"
ln -s /proc/self/fd "$dev/fd"
touch "$dev/nvidiactl"
mount --rbind "$dev" /dev
exec "$@"
"""
LINE = f"[holdfast] ranks start cold: {NOT_TESTED}"


@pytest.mark.parametrize("mode", ["auto", "on"])
def test_the_default_follows_the_evidence(spawn: Spawner, tmp_path: Path, mode: str) -> None:
    """By default warm if the checks on a GPU have passed for this code; else one line tells how to turn it on."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"]).returncode != 0:
        pytest.skip("needs root, for a /dev of its own")
    (tmp_path / "dev").mkdir()
    script = tmp_path / "train.py"
    script.write_text("print('trained')\n")
    under = ["unshare", "--mount", "sh", "-c", OWN_DEV, "sh", tmp_path / "dev"]
    launcher = [*LAUNCHER, "--nproc-per-node=1", "--ft-run-dir", tmp_path / "run", "--ft-warm-start", mode]
    job = spawn([*under, *launcher, script], cwd=tmp_path)
    assert (job.wait(), job.out()) == (0, "trained\n"), job.err()
    (journal,) = (tmp_path / "run").glob("journal-*.jsonl")
    (start,) = [record for record in map(json.loads, journal.open()) if record["kind"] == "rank_start"]
    warm = mode == "on" or (mode == "auto" and bool(PASSED))
    assert start["start"] == ("warm" if warm else "cold")
    assert job.err().splitlines().count(LINE) == (mode == "auto" and not warm)
