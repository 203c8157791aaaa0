"""Prints when it is imported, to both streams."""

import sys

print("prints: imported")
print("prints: imported", file=sys.stderr)


def check() -> None:
    pass
