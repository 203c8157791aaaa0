"""The documented path of `FaultToleranceSectionsCallback`."""

from .supervised import FaultToleranceSectionsCallback

__all__ = ["FaultToleranceSectionsCallback"]
