"""Stragglers, many seeds: each injected slowness on four real ranks, and simulated jobs; the kernel core for long.

Healthy jobs have no verdict, and no other rank is blamed. A simulated job has six windows, the first is the warm-up.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from holdfast.straggler.judge import Judge
from holdfast.straggler.kernels import cupti
from tests.processes import Spawner
from tests.soak.conftest import Row, promised
from tests.straggler.jobs import EXPECTED, run
from tests.straggler.kernels.conftest import NATIVE, build_fakes
from tests.straggler.simulation import Job, assess, blamed, factors

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("kind", EXPECTED)
def test_the_rank_and_the_reason_are_named(spawn: Spawner, tmp_path: Path, kind: str, row: Row) -> None:
    seeds = promised(20)
    jobs = [run(spawn, tmp_path, kind, seed) for seed in range(seeds)]
    found, wrong = sum(job.found for job in jobs), [job for job in jobs if job.blamed_others]
    row(
        f"one of 4 gloo ranks slowed down: {kind}",
        f"{found} of {seeds} found, rank and kind",
        f"{len(wrong)} blamed another rank",
    )
    told = "\n\n".join(job.told() for job in jobs if job in wrong or not job.found)
    assert found >= seeds - seeds // 20 and not wrong, told


def test_no_rank_is_named_in_a_healthy_job(spawn: Spawner, tmp_path: Path, row: Row) -> None:
    seeds = promised(20)
    jobs = [run(spawn, tmp_path, "healthy", seed) for seed in range(seeds)]
    wrong = [job for job in jobs if job.verdicts]
    row(
        "healthy job of 4 gloo ranks",
        f"{len(wrong)} of {seeds} with a verdict",
        f"{len(jobs[0].reports)} reports each",
    )
    assert not wrong, "\n\n".join(job.told() for job in wrong)


WINDOWS = 6


@pytest.mark.parametrize("ranks", [8, 64, 512, 4096, 16384])
@pytest.mark.parametrize("noise", [0.01, 0.05, 0.10])
def test_no_rank_is_blamed_in_a_healthy_job(ranks: int, noise: float, row: Row) -> None:
    seeds, wrong, milliseconds = promised(100), [], []
    windows = WINDOWS if ranks <= 512 else 4  # warm-up and the three windows that a verdict takes
    for seed in range(seeds):
        job, judge = Job(ranks, seed, noise=noise), Judge()
        for _ in range(windows):
            window = job.window()
            start = time.perf_counter()
            judgement = judge.add(window)
            milliseconds.append((time.perf_counter() - start) * 1e3)
            wrong += [(seed, verdict) for verdict in judgement.verdicts]
    row(
        f"healthy job of {ranks} ranks, noise {noise:.0%}",
        f"{len({seed for seed, _ in wrong})} of {seeds} with a verdict",
        f"{np.median(milliseconds):.1f} ms a window (median)",
    )
    assert not wrong


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.10])
def test_a_gpu_15_percent_slow_among_512_is_found(noise: float, row: Row) -> None:
    seeds, found = promised(100), 0
    for seed in range(seeds):
        job = Job(512, seed, noise=noise, factor=factors(512, {(seed * 37) % 512: 1.15}))
        found += blamed(list(assess(job, 6))[-1]) == [(seed * 37) % 512]
    row(
        f"one GPU 15 % slow among 512, noise {noise:.0%}",
        f"{found} of {seeds} found, no other rank",
        "6 windows",
    )
    assert found == seeds


def test_a_rank_too_fast_and_gaps_blame_nobody(row: Row) -> None:
    seeds, wrong = promised(100), 0
    for seed in range(seeds):
        for job in (Job(512, seed, factor=factors(512, {5: 0.6})), Job(512, seed, missing=0.01)):
            wrong += any(judgement.verdicts for judgement in assess(job, 6))
    row("one rank 40 % too fast, or 1 % of the kernels missing", f"{wrong} of {2 * seeds} with a verdict", "")
    assert wrong == 0


# -- the kernel core with sanitizers: threads, forks, CUPTI leaving and another tool, for millions of records

# The core and the fake libcupti are built with ThreadSanitizer, and with AddressSanitizer and its siblings, into one
# program (tests/straggler/kernels/native/stress.cpp). A race, an inversion of locks, memory that is used after it was
# freed, a leak: each ends the program with an error.
CORE = Path(cupti.__file__).parent / "native"
ROUNDS = 20


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_the_core_under_sanitizers(sanitizer: str, spawn: Spawner, tmp_path: Path, row: Row) -> None:
    if shutil.which("g++") is None or shutil.which("gcc") is None:
        pytest.skip("no gcc and g++: the core cannot be built with a sanitizer")
    flags = [f"-fsanitize={sanitizer}", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
    build_fakes(tmp_path, *flags)
    program = tmp_path / "stress"
    sources = [*sorted(CORE.glob("*.cpp")), NATIVE / "stress.cpp"]
    compiler = ["g++", "-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", *flags, f"-I{NATIVE}"]
    built = subprocess.run(
        [*compiler, *map(str, sources), "-o", str(program), "-ldl", "-lpthread"],
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    rounds = promised(ROUNDS)
    running = spawn(
        [program, tmp_path / "libcupti.so.13", str(rounds)],
        env={
            "LD_LIBRARY_PATH": str(tmp_path),
            "TSAN_OPTIONS": "halt_on_error=1 detect_deadlocks=1 second_deadlock_stack=1",
            "ASAN_OPTIONS": "detect_leaks=1",
        },
    )
    assert running.wait(1500) == 0, running.output()
    told = re.search(r"(\d+) measured, .* left (\d+) times", running.out())
    assert told is not None, running.output()
    assert int(told[1]) > 50_000 * rounds and int(told[2]) >= rounds
    row(f"kernel core, {sanitizer} sanitizer", f"{rounds} of {rounds} rounds without a finding", told[0])
