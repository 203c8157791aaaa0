"""Names of `holdfast.straggler` where programs look for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.straggler import Report as Report
    from holdfast.straggler import StragglerId as StragglerId
else:
    from nvidia_resiliency_ext._aliases import of

    __all__, __getattr__, __dir__ = of(__name__)
