"""What the soak tests share: jobs, and a table at the end that can be pasted into docs/soak.md.

The counts are the ones that are promised; HOLDFAST_SOAK=0.1 makes a tenth of them for a short run while developing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

Row = Callable[[str, str, str], None]
_ROWS: list[tuple[str, str, str]] = []


def promised(count: int) -> int:
    """This many, or the share of it that HOLDFAST_SOAK asks for."""
    return max(2, round(count * float(os.environ.get("HOLDFAST_SOAK", "1"))))


@pytest.fixture
def row() -> Row:
    """`row("restarts after kill -9", "100 of 100", "details")` adds a line to the table."""
    return lambda what, result, detail: _ROWS.append((what, result, detail))


@pytest.fixture(scope="session", autouse=True)
def _print_table(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if _ROWS:
        capture = request.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            print("\n\n| soak | result | |\n|---|---|---|")
            for row in _ROWS:
                print("| " + " | ".join(row) + " |")


# -- what a process holds


@dataclass(frozen=True, slots=True)
class Held:
    """Descriptors, threads, and memory in MB of one process."""

    descriptors: int
    threads: int
    memory: float


def held(pid: int, *, shared: bool = False) -> Held:
    """What this process holds now: private memory, or with `shared` all that is of no file.

    What a process shares with its forks is private or not depending on who lives.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kind = "Anonymous:" if shared else "Private_"
    memory = sum(int(line.split()[1]) for line in lines if line.startswith(kind))
    return Held(
        descriptors=len(os.listdir(f"/proc/{pid}/fd")),
        threads=len(os.listdir(f"/proc/{pid}/task")),
        memory=memory / 1024,
    )


def does_not_grow(samples: list[Held], settled: int, allowed: float) -> None:
    """From sample `settled` to the last one: no more descriptors, no more threads, and at most `allowed` MB more."""
    first, last = _ends(samples, settled)
    assert last.descriptors <= first.descriptors
    assert last.threads <= first.threads
    assert last.memory - first.memory <= allowed


def grown(samples: list[Held], settled: int) -> tuple[str, str]:
    """The same as a row of a table says it: by how many MB, and all else."""
    first, last = _ends(samples, settled)
    return (
        f"{last.memory - first.memory:+.1f} MB",
        f"memory {first.memory:.1f} → {last.memory:.1f} MB, descriptors {first.descriptors} → {last.descriptors}, "
        f"threads {first.threads} → {last.threads}, from sample {settled} on",
    )


def _ends(samples: list[Held], settled: int) -> tuple[Held, Held]:
    return samples[min(settled, len(samples) - 2)], samples[-1]
