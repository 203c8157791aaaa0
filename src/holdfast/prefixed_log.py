"""The lines of an integration: each begins with who speaks, and what all ranks would say one of them says.

What always holds: information comes from rank 0 only, warnings and errors from every rank that has them. Does not
cover: where the lines go (the logger that is given).
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:  # Python 3.10 cannot subscript it
    _Adapter = logging.LoggerAdapter


class Prefixed(_Adapter):
    """Begins each line with the documented `[FaultToleranceCallback@rank0] `, which log readers look for."""

    def __init__(self, logger: logging.Logger, rank: int, who: str = "FaultToleranceCallback") -> None:
        super().__init__(logger, {})
        self._who = who
        self._rank = rank

    def isEnabledFor(self, level: int) -> bool:
        """Below a warning only on rank 0."""
        return (self._rank == 0 or level >= logging.WARNING) and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """The prefix, then the text."""
        return f"[{self._who}@rank{self._rank}] {msg}", kwargs
