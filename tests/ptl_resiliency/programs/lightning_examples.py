"""Runs the example scripts of Lightning one after another in one process. Arguments: the scripts' folder, one for all
that they write. The last one trains until it is preempted.
"""

from __future__ import annotations

import runpy
import sys

examples, folder = sys.argv[1:]
sys.path.insert(0, examples)
for script, *options in (
    ("fault_tolerance", "--epochs=1"),
    ("sections", "--epochs=1"),
    ("stragglers", "--slow-rank=1", "--stop"),
    ("preemption", "--epochs=1000"),
):
    sys.argv = [script, f"--dir={folder}/{script}", *options]
    try:
        runpy.run_path(f"{examples}/{script}.py", run_name="__main__")
    except SystemExit as end:
        print(f"{script} ends with {end.code}\n", end="", flush=True)
