"""Puts something of its own in the place of standard output."""

import sys

inner = sys.stdout


class Loud:
    """Standard output, in capitals."""

    def write(self, text):
        return inner.write(text.upper())

    def __getattr__(self, name):
        return getattr(inner, name)


sys.stdout = Loud()


def check() -> None:
    assert inner is sys.__stdout__
    print("loud", flush=True)
    sys.stdout = inner
