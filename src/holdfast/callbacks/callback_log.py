"""The logger of a callback, by its documented name, in a program that may not have set up logging.

What always holds: where the program (NeMo, say) has handlers, it decides what is shown; while there are none, the
callback's lines go to stderr from INFO on, since they are what it is used for. The root logger stays as the program
left it: a handler or a level of ours there would show other libraries' lines, and keep `logging.basicConfig` from
doing anything.

Does not cover: a program that sets up logging later, for warnings only, on the root: lines from INFO on reach its
handlers.
"""

from __future__ import annotations

import logging

INSTEAD_OF_ROOT = "holdfast.callbacks"
"""Where no name is given, and the root has no handler."""


def named(name: str | None) -> logging.Logger:
    """The logger; None (or "root") is the root's, or one of ours below it where the root would show nothing."""
    logger = logging.getLogger(name)
    if logger.hasHandlers():
        return logger
    if logger.parent is None:
        logger = logging.getLogger(INSTEAD_OF_ROOT)
    if not _own(logger):
        logger.addHandler(_UntilThereAreOthers(logger))
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
    return logger


class _UntilThereAreOthers(logging.StreamHandler):  # type: ignore[type-arg]
    """Silent once the program has handlers that get the same lines."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._logger = logger
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if not _others(self._logger):
            super().emit(record)


def _own(logger: logging.Logger) -> bool:
    return any(isinstance(handler, _UntilThereAreOthers) for handler in logger.handlers)


def _others(logger: logging.Logger | None) -> bool:
    """Whether a line given to this logger reaches a handler that is not ours."""
    while logger is not None:
        if any(not isinstance(handler, _UntilThereAreOthers) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False
