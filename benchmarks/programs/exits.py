"""A rank without torch that prints its cycle and ends with 3 after a moment, so that all ranks are restarted."""

import os
import sys
import time

if os.environ["LOCAL_RANK"] == "0":
    print("cycle", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
time.sleep(0.05)
sys.exit(3 if os.environ["LOCAL_RANK"] == "0" else 0)
