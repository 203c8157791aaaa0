"""Names of `holdfast.ptl_resiliency` where programs look for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvidia_resiliency_ext._aliases import of

if TYPE_CHECKING:
    from holdfast.ptl_resiliency import StragglerDetectionCallback as StragglerDetectionCallback

__all__, __getattr__, __dir__ = of(__name__)
