"""How busy the ranks are: a rank without a board tells nothing else. Does not cover: their children."""

from __future__ import annotations

from ...processes import proc


class CpuMeter:
    """CPU seconds per second that some processes used since the last question."""

    def __init__(self) -> None:
        self._used = 0.0
        self._asked = 0.0

    def rate(self, pids: set[int], now: float) -> float:
        """Since the last call; the first answer is an average over the life of this machine and thus small."""
        stats = [proc.stat(pid) for pid in pids]
        used = sum(found.cpu_ticks for found in stats if found) / proc.TICKS_PER_SECOND
        rate = max(0.0, used - self._used) / max(now - self._asked, 1e-3)
        self._used, self._asked = used, now
        return rate
