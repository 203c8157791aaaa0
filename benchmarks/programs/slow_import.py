"""`all_reduce.py`, with a slow module imported before."""

import runpy
from pathlib import Path

import slow_to_import  # noqa: F401

runpy.run_path(str(Path(__file__).with_name("all_reduce.py")))
