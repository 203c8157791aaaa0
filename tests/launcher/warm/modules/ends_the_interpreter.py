"""Ends the interpreter, unless it is a rank's."""

import os

if "RANK" not in os.environ:
    os._exit(3)


def check() -> None:
    pass
