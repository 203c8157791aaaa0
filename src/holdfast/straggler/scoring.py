"""The documented scores of one rank, report after report: what was its best so far, and which scores are asked for.

Pure. Scores are in one order on all ranks: relative before individual, the GPU's before the sections'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .exchange.protocol import References
from .scores import Best, gpu_score, section_scores
from .snapshot import Snapshot

Scores = dict[int, float]


@dataclass
class Named:
    """Scores under their names: the GPU's by rank, those of sections by section and rank; empty if not asked for."""

    gpu: Scores = field(default_factory=dict)
    sections: dict[str, Scores] = field(default_factory=dict)


class Scoring:
    """The scores that are asked for."""

    def __init__(self, relative: bool, individual: bool) -> None:
        self._relative, self._individual = relative, individual
        self._best_sections: Best[str] = Best()
        self._best_kernels: Best[int] = Best()

    def own(self, names: Sequence[str], mine: Snapshot, references: References) -> list[float]:
        """This rank's scores in the window; `names` are the sections that have one."""
        times, gpu = mine.section_times, (mine.kernel_times, mine.kernel_weights)
        best_sections = self._best_sections.update(times)
        best_kernels = self._best_kernels.update(mine.kernel_times)
        scores: list[float] = []
        if self._relative:
            scores.append(gpu_score(*gpu, references.kernel_times))
            scores += section_scores(names, times, references.section_times).values()
        if self._individual:
            scores.append(gpu_score(*gpu, best_kernels))
            scores += section_scores(names, times, best_sections).values()
        return scores

    def named(self, names: Sequence[str], scores: Sequence[Scores]) -> tuple[Named, Named]:
        """Relative and individual scores of some ranks, from those of `own` in its order, by rank."""
        rows = iter(scores)
        return self._next(self._relative, names, rows), self._next(self._individual, names, rows)

    @staticmethod
    def _next(asked: bool, names: Sequence[str], rows: Iterator[Scores]) -> Named:
        if not asked:
            return Named()
        gpu = next(rows)
        return Named(gpu, {name: next(rows) for name in names})


def scored_share(weights: Mapping[int, float], references: Mapping[int, float]) -> float:
    """The share of a GPU's time in kernels that compute for which there is a reference; NaN if it has none."""
    total = sum(weights.values())
    common = sum(weight for key, weight in weights.items() if key in references)
    return common / total if total > 0 else float("nan")
