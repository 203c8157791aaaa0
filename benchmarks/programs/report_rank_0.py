"""Rank 0 of a simulated job of many ranks makes straggler reports: its time, memory and traffic, as a line of JSON.

    python report_rank_0.py RANKS [SECTIONS KERNELS REPORTS]

The other ranks are one channel, which answers with rank 0's own row, each number a few percent off. Its own time is
taken off, the memory of the rows is not: a real gather needs it as well.
"""

from __future__ import annotations

import json
import random
import resource
import statistics
import sys
from time import perf_counter

import numpy as np

from holdfast.straggler.kernels.source import KernelWindow
from holdfast.straggler.session import Session
from holdfast.straggler.settings import Settings
from holdfast.straggler.statistic import summarise

RANKS = int(sys.argv[1])
SECTIONS, KERNELS, REPORTS = (int(one) for one in (*sys.argv[2:], *("5", "500", "8")[len(sys.argv) - 2 :]))
CALLS = 20
BLOCK = 256


class Others:
    """All other ranks."""

    rank = 0

    def __init__(self, size: int) -> None:
        self.size, self.ranks = size, range(size)
        self.spent, self.received = 0.0, 0
        self.received_elsewhere = 0
        self._noise = np.random.default_rng(0)

    def least(self, values: list[float]) -> list[float]:
        self.received += 8 * len(values)
        self.received_elsewhere += 8 * len(values)
        return values

    def from_rank(self, root: int, payload: bytes, length: int) -> bytes:
        self.received_elsewhere += length
        return payload

    def bytes_to_rank_0(self, payload: bytes, length: int) -> bytearray:
        started = perf_counter()
        self.received += length * (self.size - 1)
        rows = bytearray(length * self.size)
        table = np.frombuffer(rows, np.uint8).reshape(self.size, length)
        row = np.frombuffer(payload.ljust(length, b"\0"), np.uint8)
        for start in range(0, self.size, BLOCK):
            block = table[start : start + BLOCK]
            block[:] = row
            if length > 1000:  # figures, not names: the medians, which follow the scores
                first = 8 * 2 * (1 + SECTIONS)
                last = first + 4 * (SECTIONS + min(KERNELS, 128))
                medians = np.ascontiguousarray(block[:, first:last]).view("<f4")
                medians *= self._noise.normal(1, 0.02, medians.shape).astype("f4")
                block[:, first:last] = medians.view(np.uint8)
        self.spent += perf_counter() - started
        return rows


class Kernels:
    name, reason = "simulated", ""

    def __init__(self) -> None:
        noise = random.Random(0)
        self._window = KernelWindow(
            {
                f"kernel_{number}_" + "x" * 180: summarise([100.0 + noise.random() for _ in range(CALLS)])
                for number in range(KERNELS)
            }
        )

    def start(self, section: str) -> None: ...
    def stop(self) -> None: ...
    def take(self) -> KernelWindow:
        return self._window

    def close(self) -> None: ...


def peak() -> float:
    """Megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def main() -> None:
    import holdfast.straggler.judge  # noqa: F401  its import is not what is measured

    others = Others(RANKS)
    session = Session(Settings(node_name="gpu-0001"), Kernels(), others)
    before, times, first_received = peak(), [], (0, 0)
    for number in range(REPORTS):
        for name in range(SECTIONS):
            for _ in range(CALLS):
                with session.sections.enter(f"section_{name}", False):
                    pass
        others.spent, started = 0.0, perf_counter()
        report = session.report()
        times.append((perf_counter() - started - others.spent) * 1e3)
        assert report is not None and len(report.gpu_relative_perf_scores) == RANKS
        if not number:
            first_received = others.received, others.received_elsewhere
    print(
        json.dumps(
            {
                "first_ms": times[0],
                "steady_ms": statistics.median(times[2:]),
                "first_received_rank_0": first_received[0],
                "first_received_others": first_received[1],
                "extra_mb": peak() - before,
                "withheld": report.withheld,
            }
        )
    )


if __name__ == "__main__":
    main()
