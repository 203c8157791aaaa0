"""Names of `holdfast.ptl_resiliency` where programs look for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.ptl_resiliency import StragglerDetectionCallback as StragglerDetectionCallback
else:
    from nvidia_resiliency_ext._aliases import of

    __all__, __getattr__, __dir__ = of(__name__)
