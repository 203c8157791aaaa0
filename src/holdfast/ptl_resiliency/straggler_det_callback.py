"""The documented path of `StragglerDetectionCallback`."""

from .callbacks import StragglerDetectionCallback

__all__ = ["StragglerDetectionCallback"]
