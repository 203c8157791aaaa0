"""The logger of a callback, by its documented name, in a program that may not have set up logging.

What always holds: where the program (NeMo, say) has handlers, it decides what is shown; where there are none, the
callback's lines go to stderr from INFO on, since they are what it is used for.
Does not cover: a handler that the program adds to the root later; lines are then shown by both.
"""

from __future__ import annotations

import logging


def named(name: str | None) -> logging.Logger:
    """The logger; None is the root's."""
    logger = logging.getLogger(name)
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        logger.addHandler(handler)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
    return logger
