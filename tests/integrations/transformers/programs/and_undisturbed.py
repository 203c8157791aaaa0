"""Run a script to its end, and then once more in a folder of its own: and_undisturbed.py SCRIPT FOLDER ARGUMENT...

With PAUSE in the environment, seconds after each step, it runs once: it is to be disturbed.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path

from torch.optim.optimizer import register_optimizer_step_post_hook

script, folder, *rest = sys.argv[1:]
sys.path.insert(0, str(Path(script).parent))
pause = float(os.environ.get("PAUSE", "0"))
if pause:
    register_optimizer_step_post_hook(lambda *_: time.sleep(pause))
for place in (folder,) if pause else (folder, f"{folder}-undisturbed"):
    sys.argv = [script, f"--dir={place}", *rest]
    runpy.run_path(script, run_name="__main__")
