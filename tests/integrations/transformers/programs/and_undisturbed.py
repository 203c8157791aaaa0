"""Run a script to its end, and then once more in a folder of its own: and_undisturbed.py SCRIPT FOLDER ARGUMENT..."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

script, folder, *rest = sys.argv[1:]
sys.path.insert(0, str(Path(script).parent))
for place in (folder, f"{folder}-undisturbed"):
    sys.argv = [script, f"--dir={place}", *rest]
    runpy.run_path(script, run_name="__main__")
