"""Shows exceptions in its own way from its import on, and keeps what did so before."""

import sys

before = sys.excepthook


def hook(*error):
    before(*error)


sys.excepthook = hook


def check() -> None:
    assert sys.excepthook is hook
    assert before.__qualname__ == "_keep_exception.<locals>.hook", before
    sys.excepthook = before
