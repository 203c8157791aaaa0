"""The documented path of `FaultToleranceCallback`."""

from .callbacks import FaultToleranceCallback

__all__ = ["FaultToleranceCallback"]
