"""The kernel core with sanitizers: threads, forks, CUPTI leaving and another tool, for millions of records.

The core and the fake libcupti are built with ThreadSanitizer, and with AddressSanitizer and its siblings, into one
program (tests/straggler/kernels/native/stress.cpp). A race, an inversion of locks, memory that is used after it was
freed, a leak: each ends the program with an error.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.straggler.kernels import cupti
from tests.processes import Spawner
from tests.soak.conftest import promised
from tests.straggler.kernels.conftest import NATIVE, build_fakes

Row = Callable[[str, str, str], None]
CORE = Path(cupti.__file__).parent / "native"
ROUNDS = 20

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


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
