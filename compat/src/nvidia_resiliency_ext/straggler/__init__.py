"""`holdfast.straggler`, under the name that programs import."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.straggler import CallableId as CallableId
    from holdfast.straggler import Detector as Detector
    from holdfast.straggler import Report as Report
    from holdfast.straggler import Statistic as Statistic
    from holdfast.straggler import StragglerId as StragglerId
    from holdfast.straggler import Thresholds as Thresholds
    from holdfast.straggler import Verdict as Verdict
else:
    from nvidia_resiliency_ext._aliases import of

    __all__, __getattr__, __dir__ = of(__name__)
