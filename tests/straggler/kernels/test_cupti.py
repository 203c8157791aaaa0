"""The kernel core and the source named cupti against a fake libcupti: core_checks.py and cupti_checks.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.straggler.kernels.cupti import _profiler_is_active
from tests.straggler.kernels import core_checks, cupti_checks
from tests.straggler.kernels.conftest import Run, with_fakes

PROGRAMS = {program.__name__: program for program in (core_checks, cupti_checks)}


@pytest.fixture(scope="module")
def ended(fakes: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """The status and the output of each check."""
    given = os.environ | with_fakes(fakes)
    environment = {name: value for name, value in given.items() if value is not None}
    found = {}
    for program in PROGRAMS:
        folder = tmp_path_factory.mktemp("checks")
        command = [sys.executable, "-m", program, str(folder)]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, timeout=300)
        for name, status in json.loads(done.stdout).items():
            found[name] = status, (folder / name).read_text()
    return found


@pytest.mark.parametrize(
    "name", [name for program in PROGRAMS.values() for name in vars(program) if name.startswith("check_")]
)
def test_checks(ended: dict[str, tuple[int, str]], name: str) -> None:
    status, output = ended[name]
    assert status == 0, output


def test_records_of_an_older_cupti(run: Run) -> None:
    run("from tests.straggler.kernels.core_checks import records_of; records_of(144, 248)", major=12)


def test_a_profiler_that_warms_up_goes_first() -> None:
    torch = pytest.importorskip("torch")
    found = [_profiler_is_active()]
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=1, repeat=1),
    ) as profiler:
        for _ in range(3):
            found.append(_profiler_is_active())
            profiler.step()
    assert [*found, _profiler_is_active()] == [False, True, True, True, False]
