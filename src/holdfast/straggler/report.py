"""What a report says, and which ranks it calls stragglers.

Pure. Does not cover: how sure scores are. One window decides, and a score is compared with a fixed threshold; verdicts
are made from several windows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from .scores import Summary

Scores = Mapping[int, float]


GPU, HOST, SECTION, LATE = "GPU", "host", "section", "collective/late arrival"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One slow rank, or a node most of whose ranks are slow.

    Does not cover: why a GPU is slow (clocks, temperature, errors); and whether the rank should be replaced.
    """

    rank: int | None
    """None: the whole node."""
    node: str
    ranks: tuple[int, ...]
    """The rank, or all ranks of the node."""
    kind: str
    """"GPU", "host", "section" or "collective/late arrival"."""
    slowdown: float
    """Time over that of comparable ranks: 1.15 takes 15 % longer."""
    since: int
    """The first report in which it was slow; the job's first report is 1."""
    evidence: str
    """One sentence."""
    section: str | None = None
    """The section, for the kind "section" and where a host's loss shows in one."""

    def __str__(self) -> str:
        text = f"{self.kind}, {self.slowdown:.2f} × slower since report {self.since}"
        if self.rank is None:
            return (
                f"node {self.node}: {text}, {self.evidence}"  # which begins with the number of its slow ranks
            )
        return f"rank {self.rank} (node {self.node}): {text}: {self.evidence}"


def longer(slowdown: float) -> str:
    """1.152 -> "15 % longer than"; from 3 on, "3.4 times as long as"."""
    return f"{(slowdown - 1) * 100:.0f} % longer than" if slowdown < 3 else f"{slowdown:.1f} times as long as"


def seconds(value: float) -> str:
    """A time as people write it."""
    if value >= 1:
        return f"{value:.1f} s"
    return f"{value * 1000:.0f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} µs"


def ranks_text(ranks: Iterable[int], most: int | None = None) -> str:
    """3, 4, 5, 9 as "rank 3–5, 9"; of more than `most` series, the first and an ellipsis."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    texts = [str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}–{b}" for a, b in runs]
    if most is not None and len(texts) > most:
        texts[most:] = ["…"]
    return f"rank {', '.join(texts)}" if texts else ""


@dataclass(frozen=True)
class StragglerId:
    """A slow rank and the node that it is on."""

    rank: int
    node: str


@dataclass(frozen=True)
class Report:
    """The scores of one window, the time since the last report. Scores go from 0.0 (worst) to 1.0 (best).

    With `gather_on_rank0` rank 0 has the scores of all ranks; without, each rank has its own. Scores that were not
    asked for are empty. NaN says that there is nothing to compare with: a section or all kernels that some rank did
    not run.

    Attributes:
        gpu_relative_perf_scores: rank → score of its GPU, against the fastest rank.
        section_relative_perf_scores: section → rank → score, against the fastest rank.
        gpu_individual_perf_scores: rank → score of its GPU, against its own best window.
        section_individual_perf_scores: section → rank → score, against its own best window.
        rank_to_node: rank → name of its node.
        local_section_summaries: section → `Statistic` → milliseconds, of this rank.
        local_kernel_summaries: kernel → `Statistic` → microseconds, of this rank.
        generate_report_elapsed_time: what making this report took on this rank, in milliseconds.
        gather_on_rank0: whether the scores of all ranks were gathered.
        rank: the rank that has this report.
        local_collective_summaries: kernel → `Statistic` → microseconds, of kernels that wait for other ranks. They
            have no scores.
        kernel_source: where kernel times came from; `none` without a source, and all GPU scores are NaN.
        kernel_source_reason: why there is no better source, on this rank; empty for the best.
        kernel_note: why this rank's source saw less than it could in this window; empty if it saw all.
        kernel_records: how many kernels were measured on this rank.
        kernel_records_dropped: how many are known to be lost.
        gpu_time_scored: the share (0 to 1) of this rank's time in computing kernels that is in its relative score:
            in kernels that all ranks ran. NaN without kernels.
        withheld: why there are no verdicts, or none about some ranks, a sentence each.
    """

    gpu_relative_perf_scores: Scores
    section_relative_perf_scores: Mapping[str, Scores]
    gpu_individual_perf_scores: Scores
    section_individual_perf_scores: Mapping[str, Scores]
    rank_to_node: Mapping[int, str]
    local_section_summaries: Mapping[str, Summary]
    local_kernel_summaries: Mapping[str, Summary]
    generate_report_elapsed_time: float
    gather_on_rank0: bool
    rank: int
    local_collective_summaries: Mapping[str, Summary] = field(default_factory=dict)
    kernel_source: str = "none"
    kernel_source_reason: str = ""
    kernel_note: str = ""
    kernel_records: int = 0
    kernel_records_dropped: int = 0
    gpu_time_scored: float = math.nan
    withheld: tuple[str, ...] = ()
    _verdicts: tuple[Verdict, ...] = ()

    def identify_stragglers(
        self,
        gpu_rel_threshold: float = 0.75,
        section_rel_threshold: float = 0.75,
        gpu_indiv_threshold: float = 0.75,
        section_indiv_threshold: float = 0.75,
    ) -> dict[str, Any]:
        """The ranks whose scores are below the thresholds.

        Returns:
            `straggler_gpus_relative` and `straggler_gpus_individual`, each a set of `StragglerId`;
            `straggler_sections_relative` and `straggler_sections_individual`, each a dict from section to such a set,
            with only the sections that have stragglers.

        Raises:
            ValueError: a threshold is not a number from 0 on.

        Does not cover: synchronised training, where all ranks wait for the slow one in every step: put sections
        around work before the collective. A score of NaN is never below a threshold.
        """
        thresholds = {
            "gpu_rel_threshold": gpu_rel_threshold,
            "section_rel_threshold": section_rel_threshold,
            "gpu_indiv_threshold": gpu_indiv_threshold,
            "section_indiv_threshold": section_indiv_threshold,
        }
        for name, value in thresholds.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise ValueError(f"identify_stragglers: {name} must be a number from 0 on, not {value!r}")
        relative, individual = self.section_relative_perf_scores, self.section_individual_perf_scores
        return {
            "straggler_gpus_relative": self._below(self.gpu_relative_perf_scores, gpu_rel_threshold),
            "straggler_gpus_individual": self._below(self.gpu_individual_perf_scores, gpu_indiv_threshold),
            "straggler_sections_relative": self._sections_below(relative, section_rel_threshold),
            "straggler_sections_individual": self._sections_below(individual, section_indiv_threshold),
        }

    def _below(self, scores: Scores, threshold: float) -> set[StragglerId]:
        return {
            StragglerId(rank, self.rank_to_node[rank]) for rank, score in scores.items() if score < threshold
        }

    def _sections_below(self, scores: Mapping[str, Scores], threshold: float) -> dict[str, set[StragglerId]]:
        found = {section: self._below(ranks, threshold) for section, ranks in scores.items()}
        return {section: stragglers for section, stragglers in found.items() if stragglers}

    def verdicts(self) -> list[Verdict]:
        """The nodes and ranks that are lastingly slow, nodes first, then the slowest; `withheld` says what is left out.

        Each has `rank` (None for a node), `node`, `ranks`, `kind`, `slowdown` (1.5 takes 50 % longer), `since` (a
        report), `evidence` (a sentence) and `section`. A rank is compared with the median of the others that do the
        same work and with its own past, a node with the other nodes; the rule is `straggler.find_stragglers`.

        Needs `gather_on_rank0`, and then only rank 0 has them; numpy on rank 0 (extra `straggler`);
        at least 3 ranks that do the same work; one report to warm up and three more, with 3 runs of a section in each.

        Does not cover: 40 % of the ranks slow at once, on several nodes or on the only one (`withheld` reports it).
        """
        return list(self._verdicts)

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain dicts, lists, texts and numbers: names of statistics instead of `Statistic`, None for
        NaN. `verdicts` is a list with a dict for each."""
        found = {name: _plain(value) for name, value in vars(self).items() if name != "_verdicts"}
        return found | {
            "withheld": list(self.withheld),
            "verdicts": [asdict(verdict) for verdict in self._verdicts],
        }

    def to_json(self, indent: int | None = None) -> str:
        """`to_dict` as JSON. Ranks are keys, so they are texts there."""
        return json.dumps(self.to_dict(), indent=indent)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key if isinstance(key, (int, str)) else str(key): _plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value
