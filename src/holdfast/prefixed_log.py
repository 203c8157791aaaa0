"""Log lines of a training process begin with who logs them; what all ranks would log, one of them logs.

A program that has not set up logging shows a warning's bare text, among the training's own lines; so the text itself
begins with the name.
Does not cover: the launcher and the monitor, which have a console of their own.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:  # Python 3.10 cannot subscript it
    _Adapter = logging.LoggerAdapter


class _Named(_Adapter):
    def __init__(self, logger: logging.Logger, prefix: str) -> None:
        super().__init__(logger, {})
        self._prefix = prefix

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"{self._prefix} {msg}", kwargs


class Prefixed(_Named):
    """The lines of an integration, with the documented `[FaultToleranceCallback@rank0] ` that log readers search for.

    What always holds: information comes from rank 0 only, warnings and errors from every rank that has them.
    """

    def __init__(self, logger: logging.Logger, rank: int, who: str = "FaultToleranceCallback") -> None:
        super().__init__(logger, f"[{who}@rank{rank}]")
        self._rank = rank

    def isEnabledFor(self, level: int) -> bool:
        """Below a warning only on rank 0."""
        return (self._rank == 0 or level >= logging.WARNING) and super().isEnabledFor(level)


class Once:
    """Logs each text once, whatever the values in it are."""

    def __init__(self, logger: logging.Logger | _Adapter) -> None:
        self._log = logger
        self._logged: set[str] = set()

    def __call__(self, level: int, text: str, *values: object) -> None:
        if text not in self._logged:
            self._logged.add(text)
            self._log.log(level, text, *values)


log = _Named(logging.getLogger("holdfast"), "holdfast:")
"""The lines of everything else."""
