"""Who is lastingly slow, after each report, on the rank that has the times of all: `judge` fed with what was gathered.

What always holds: nothing here raises into the training; numpy is loaded only where there are enough ranks to judge.
Does not cover: what `judge` does not: see there.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast.prefixed_log import Once

from .exchange import is_collective
from .gpu_facts import FIELDS, told, typical
from .labels import GroupsError, labels_of
from .settings import Thresholds

if TYPE_CHECKING:
    from .exchange import Gathered
    from .judge import Judge, Judgement
    from .labels import Given
    from .report import Verdict
    from .scores import References
    from .state_file import StateFile
    from .window import Window

log = logging.getLogger("holdfast.straggler")
SEEN = 0.5
"""Share that must be left of the kernel time that verdicts saw when their kernels were chosen; less is said."""
MOST_COMPARED = 64
"""Ranks whose GPUs' facts are put beside those of one in a verdict."""


@dataclass(frozen=True)
class Judged:
    """The verdicts of one report, and why there are none, or fewer: a sentence each."""

    verdicts: tuple[Verdict, ...] = ()
    withheld: tuple[str, ...] = ()


NOT_GATHERED = Judged(
    withheld=("the times of all ranks are needed in one place: initialize with gather_on_rank0=True",)
)


class Verdicts:
    """The verdicts of one job, report after report."""

    def __init__(
        self,
        groups: Given | None,
        thresholds: Thresholds | None,
        state: Callable[[int], StateFile | None],
    ) -> None:
        """`state` gives the file where the rank that judges keeps what it knows."""
        self._state = state
        self._groups = groups
        self._thresholds = thresholds or Thresholds()
        self._judge: Judge | None = None
        self._once = Once(log)

    def use(self, thresholds: Thresholds) -> None:
        """Judge by these from the next report on, the last windows included."""
        self._thresholds = thresholds  # taken over by the next report, which may be made in another thread

    def of(
        self,
        nodes: Mapping[int, str],
        references: References,
        gathered: Gathered,
        losses: Sequence[str],
        labels: Sequence[str],
    ) -> Judged:
        """The verdicts after one more report. `nodes` has the ranks in the order of the rows, and `losses` the causes
        in that of each row's last numbers. `labels`: what work each rank said that it does (see `labels.own_label`)."""
        if len(nodes) < self._thresholds.min_ranks:
            return self._without(self._too_few(len(nodes), len(nodes)), logging.INFO)
        try:
            return self._judged(nodes, references, gathered, losses, labels)
        except ImportError as error:
            return self._without(
                f"numpy cannot be imported on this rank ({error}); install it there (extra `straggler`)"
            )
        except GroupsError as error:
            return self._without(str(error))
        except Exception as error:  # the user's groups, or a fault of ours: the training continues
            return self._without(f"they could not be computed ({type(error).__name__}: {error})")

    def _judged(
        self,
        nodes: Mapping[int, str],
        references: References,
        gathered: Gathered,
        losses: Sequence[str],
        labels: Sequence[str],
    ) -> Judged:
        from .judge import Judge
        from .window import of_rows

        ranks = list(nodes)
        if self._judge is None:
            self._judge = Judge(labels_of(self._groups, ranks, labels), self._thresholds)
            self._restore(self._judge, nodes)  # once, even if it fails
        self._judge.thresholds = self._thresholds
        skipped = 8 * gathered.layout.scores
        window = of_rows(
            gathered.rows, skipped, _columns(references), list(nodes.values()), losses, len(FIELDS)
        )
        assessment = self._judge.add(window)
        if (state := self._state(ranks[0])) is not None:
            state.save(self._judge.baseline.levels, list(nodes.values()))
        verdicts = [_with_facts(verdict, assessment, gathered) for verdict in assessment.verdicts]
        # The judge counts the ranks of the process group; users know their global numbers.
        named = tuple(
            replace(
                verdict,
                rank=None if verdict.rank is None else ranks[verdict.rank],
                ranks=tuple(ranks[one] for one in verdict.ranks),
            )
            for verdict in verdicts
        )
        notes = self._notes(assessment) or _too_few_runs(window, self._thresholds.min_samples)
        return Judged(named, (*notes, *_unseen(references), *assessment.suppressed))

    def _restore(self, judge: Judge, nodes: Mapping[int, str]) -> None:
        """Continue with what the last start of the job has learned."""
        state = self._state(next(iter(nodes)))
        known = None if state is None else state.load(list(nodes.values()))
        if known is not None:
            judge.baseline.restore(*known)

    def _notes(self, assessment: Judgement) -> list[str]:
        """Why some or all ranks could not be blamed, whatever they measured."""
        if assessment.warming_up:
            return ["the job is warming up: this report counts for nothing"]
        sizes = Counter(assessment.groups.tolist()).values()
        alone = sum(size for size in sizes if size < self._thresholds.min_ranks)
        return [self._too_few(alone, sum(sizes))] if alone else []

    def _too_few(self, ranks: int, of: int) -> str:
        needed = self._thresholds.min_ranks
        alone = f"{ranks} of {of} ranks are" if of > 1 else "the only rank is"
        return f"{alone} compared with no other: there must be {needed} ranks that do the same work"

    def _without(self, why: str, level: int = logging.WARNING) -> Judged:
        self._once(level, "straggler reports have no verdicts: %s. Scores are not affected", why)
        return Judged(withheld=(why,))


def _with_facts(verdict: Verdict, assessment: Judgement, gathered: Gathered) -> Verdict:
    """With what is remarkable of this rank's GPU beside those of some comparable ranks."""
    if verdict.rank is None:
        return verdict
    alike = (assessment.groups == assessment.groups[verdict.rank]).nonzero()[0].tolist()
    rows = [gathered.extras(rank)[-len(FIELDS) :] for rank in alike[:MOST_COMPARED] if rank != verdict.rank]
    clause = told(gathered.extras(verdict.rank)[-len(FIELDS) :], typical(rows))
    return replace(verdict, evidence=f"{verdict.evidence}; {clause}") if clause else verdict


def _too_few_runs(window: Window, needed: int) -> list[str]:
    """That nothing was run often enough to be judged. Some ranks are looked at: all do about the same."""
    counts = window.counts[:: max(window.ranks // MOST_COMPARED, 1)]
    often = [bool(row.any()) for row in counts >= needed]
    if all(often):
        return []
    return [
        f"{often.count(False)} of {len(often)} ranks that were looked at ran no section or kernel {needed} times in "
        "this report: report more rarely, or measure more runs"
    ]


def _unseen(references: References) -> list[str]:
    """That verdicts see too little of what a GPU does."""
    if references.still_judged >= SEEN:
        return []
    left = 100 * references.still_judged
    return [
        f"some rank runs other kernels than before: verdicts on GPUs see {left:.0f} % of the time that they saw. "
        "They will look at other kernels soon"
    ]


def _columns(references: References) -> list[tuple[str, str]]:
    """The name and the kind of each column of the rows."""
    sections = [
        (name, "collective" if name in references.waiting else "section") for name in references.sections
    ]
    kernels = [(f"{one:016x}", "collective" if is_collective(one) else "kernel") for one in references.judged]
    return sections + kernels
