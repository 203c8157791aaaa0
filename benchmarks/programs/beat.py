"""Ranks that send heartbeats ten times a second until they are ended.

argv: "holdfast", "nvrx" or nothing, and "torch" for ranks that have imported it, as real ones have.
"""

import sys
import time

from rank_client import connected_client

if "torch" in sys.argv:
    import torch.distributed  # noqa: F401
client = connected_client(next((each for each in sys.argv[1:] if each != "torch"), ""))
sys.stdout.write("ready\n")
while True:
    if client is not None:
        client.send_heartbeat()
    time.sleep(0.1)
