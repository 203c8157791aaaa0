"""Puts something of its own in the place of standard output, and of the hook for exceptions."""

import sys

inner, hook = sys.stdout, sys.excepthook


class Loud:
    """Standard output, in capitals."""

    def write(self, text):
        return inner.write(text.upper())

    def __getattr__(self, name):
        return getattr(inner, name)


sys.stdout = Loud()
sys.excepthook = lambda *error: hook(*error)


def check() -> None:
    assert inner is sys.__stdout__
    assert hook.__name__ != "<lambda>"
    print("loud", flush=True)
    sys.stdout, sys.excepthook = inner, hook
