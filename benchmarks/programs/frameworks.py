"""`all_reduce.py` in a script that imports transformers, datasets and Lightning."""

import runpy
from pathlib import Path

import datasets  # noqa: F401
import lightning.pytorch  # noqa: F401
from transformers import Trainer  # noqa: F401

runpy.run_path(str(Path(__file__).with_name("all_reduce.py")))
