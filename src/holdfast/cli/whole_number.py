"""Numbers on our command lines.

Does not cover: numbers of the launcher's options; torch's parser has those.
"""

from __future__ import annotations

import argparse


def whole_number(text: str) -> int:
    """From 1 on; for `type=` of argparse. Raises ArgumentTypeError in a person's words."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, not {text!r}")
    return number
