"""Robust verdicts: which rank is slow, compared with ranks that do the same work, beyond noise, and lastingly.

    window      what all ranks measured between two reports
    groups      which ranks do the same work
    reference   what is normal for a group, kernel by kernel
    slowdown    how slow each GPU is;  sections, lateness: the same of sections and of arriving at collectives
    significance, persistence, baseline: beyond noise, lastingly, against the own past
    measure, signs, evidence, verdict: one window in numbers, what speaks against whom, and the sentences
    judge       the state over windows

Pure: values in, values out; numpy is all it needs.
"""

from .baseline import Baseline
from .judge import Assessment, Judge
from .thresholds import Thresholds
from .verdict import Verdict
from .window import Window

__all__ = ["Assessment", "Baseline", "Judge", "Thresholds", "Verdict", "Window"]
