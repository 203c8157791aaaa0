"""Straggler detection: which rank is slower than the others, or than it used to be.

Sections of the training are timed, and a report compares the times of all ranks. Nothing is loaded until it is asked
for: importing this package imports no torch and no numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy import names

if TYPE_CHECKING:
    from .detector import Detector as Detector
    from .report import Report as Report
    from .report import StragglerId as StragglerId
    from .robust.thresholds import Thresholds as Thresholds
    from .robust.verdict import Verdict as Verdict
    from .statistic import Statistic as Statistic
    from .wrapping import CallableId as CallableId

_HOME = {
    "CallableId": "wrapping",
    "Detector": "detector",
    "Report": "report",
    "Statistic": "statistic",
    "StragglerId": "report",
    "Thresholds": "robust.thresholds",
    "Verdict": "robust.verdict",
}

__all__ = ["CallableId", "Detector", "Report", "Statistic", "StragglerId", "Thresholds", "Verdict"]

__getattr__, __dir__ = names(__name__, _HOME, needs_torch=True)
