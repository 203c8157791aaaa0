"""Keeps the program's arguments and path from its import on."""

import sys

arguments, name = list(sys.argv), sys.argv[0]


def check() -> None:
    assert arguments == sys.argv, arguments
    assert name.endswith("user.py")
