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
    from .report import Verdict as Verdict
    from .rule import Findings as Findings
    from .rule import find_stragglers as find_stragglers
    from .scores import Statistic as Statistic
    from .settings import Thresholds as Thresholds
    from .wrapping import CallableId as CallableId

_HOME = {
    "CallableId": "wrapping",
    "Detector": "detector",
    "Findings": "rule",
    "Report": "report",
    "Statistic": "scores",
    "StragglerId": "report",
    "Thresholds": "settings",
    "Verdict": "report",
    "find_stragglers": "rule",
}

__all__ = list(_HOME)
__getattr__, __dir__ = names(__name__, _HOME, needs_torch=True)
