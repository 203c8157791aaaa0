"""``python -m holdfast``: the command `holdfast`."""

import sys

from .cli import console

sys.exit(console())
