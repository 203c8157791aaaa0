"""The agreed stop: all ranks of a job stop at the same place of their training, without a collective in every step.

For training programs: `StopPoint`, the rank's side, and `position`, a rank's place as a number (with `in_loader` where
a validation has several data loaders). The launchers agree on the place by the rules of this package.
Nothing is loaded until it is asked for; no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.lazy import names

if TYPE_CHECKING:
    from .point import StopPoint as StopPoint
    from .rules import END as END
    from .rules import LOADER_END as LOADER_END
    from .rules import in_loader as in_loader
    from .rules import position as position

_HOME = {
    "END": "rules",
    "LOADER_END": "rules",
    "StopPoint": "point",
    "in_loader": "rules",
    "position": "rules",
}

__all__ = ["END", "LOADER_END", "StopPoint", "in_loader", "position"]

__getattr__, __dir__ = names(__name__, _HOME)
