"""The example's training, with a fault for each attempt (words in FAULTS), and the finished flag at its end."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

faults = os.environ.get("FAULTS", "").split()
attempt = int(os.environ.get("HOLDFAST_ATTEMPT", "1"))
if attempt <= len(faults):
    os.environ["HOLDFAST_FAULT"] = faults[attempt - 1]
train = Path(__file__).resolve().parents[3] / "examples" / "char_transformer" / "train.py"
sys.path.insert(0, str(train.parent))
sys.argv[0] = str(train)
runpy.run_path(str(train), run_name="__main__")
result = Path(sys.argv[sys.argv.index("--dir") + 1]) / "result.json"
if result.exists() and "FAULT_TOL_FINISHED_FLAG_FILE" in os.environ:
    Path(os.environ["FAULT_TOL_FINISHED_FLAG_FILE"]).touch()
