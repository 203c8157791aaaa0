"""`all_reduce.py` in a script that imports Lightning and transformers."""

import runpy
from pathlib import Path

import lightning.pytorch  # noqa: F401
from transformers import Trainer  # noqa: F401

runpy.run_path(str(Path(__file__).with_name("all_reduce.py")))
