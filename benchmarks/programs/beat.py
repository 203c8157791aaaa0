"""Ranks that send heartbeats ten times a second until they are ended.

argv: "holdfast", "nvrx" or nothing; "torch" for ranks that have imported it, as real ones have; "meet" for ranks that
have met by torch.distributed.
"""

import sys
import time

from rank_client import connected_client

if {"torch", "meet"} & {*sys.argv}:
    import torch.distributed
if "meet" in sys.argv:
    torch.distributed.init_process_group("gloo")
    torch.distributed.barrier()
client = connected_client(next((each for each in sys.argv[1:] if each in ("holdfast", "nvrx")), ""))
sys.stdout.write("ready\n")
sys.stdout.flush()
while True:
    client.send_heartbeat()
    time.sleep(0.1)
