"""Robust verdicts: which rank is slow, compared with ranks that do the same work, beyond noise, and lastingly.

    window      what all ranks measured between two reports
    groups      which ranks do the same work
    reference   what is normal for a group, kernel by kernel
    slowdown    how slow each GPU is;  sections, lateness: the same of sections and of arriving at collectives
    significance, persistence, baseline: beyond noise, lastingly, against the own past
    measure, signs, evidence, verdict: one window in numbers, what speaks against whom, and the sentences
    judge       the state over windows

Pure: values in, values out; numpy is all it needs. `Thresholds` and `Verdict` do without, so that the ranks that judge
nobody need not load it: names are imported when they are asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy import names

if TYPE_CHECKING:
    from .baseline import Baseline as Baseline
    from .judge import Assessment as Assessment
    from .judge import Judge as Judge
    from .thresholds import Thresholds as Thresholds
    from .verdict import Verdict as Verdict
    from .window import Window as Window

_HOME = {
    "Assessment": "judge",
    "Baseline": "baseline",
    "Judge": "judge",
    "Thresholds": "thresholds",
    "Verdict": "verdict",
    "Window": "window",
}

__all__ = ["Assessment", "Baseline", "Judge", "Thresholds", "Verdict", "Window"]

__getattr__, __dir__ = names(__name__, _HOME)
