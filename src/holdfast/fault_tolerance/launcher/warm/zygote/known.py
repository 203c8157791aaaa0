"""Libraries that look at the rank's variables while they are imported, and how that is made good in each rank.

An entry does to the module, once the rank's environment is there, what its import did; a test compares the two for
each library. A module that looks at such a variable and is not listed here is not imported ahead.
"""

from __future__ import annotations

import os
import sys
from typing import Any


def _fabric(module: Any) -> None:
    module.rank_zero_only.rank = module._get_rank() or 0


def _torchmetrics(module: Any) -> None:
    module.rank_zero_only.rank = int(os.environ.get("LOCAL_RANK", 0))


REPAIRS = {
    "lightning.fabric.utilities.rank_zero": _fabric,
    "lightning_fabric.utilities.rank_zero": _fabric,
    "torchmetrics.utilities.prints": _torchmetrics,
}

LOOKS_ROUND = {"fsspec.config"}
"""They go over all variables for those with a prefix of their own, and keep none of a rank's."""


def repair() -> None:
    """For each that was imported. Raises what the library's own code does: then the rank starts cold."""
    for name, again in REPAIRS.items():
        if name in sys.modules:
            again(sys.modules[name])
