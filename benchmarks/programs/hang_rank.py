"""A rank that hangs in its first cycle and says when: since when it waits, when it is asked to end, when it is back.

argv: "holdfast" or "nvrx", then "section" or "heartbeat". One JSON line for each moment, of the monotonic clock that
all processes of the machine share. The termination signal must be SIGTERM, so that it can be noticed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from typing import Any

from rank_client import connected_client

who, kind = sys.argv[1:]


def tell(what: str, *_: Any) -> None:
    """One line by one write."""
    os.write(1, (json.dumps({"moment": what, "at": time.monotonic()}) + "\n").encode())


def told_to_end(*_: Any) -> None:
    """The handler: this rank fails as a killed one would."""
    tell("signal")
    os._exit(1)


if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
    tell("back")
    sys.exit()

client = connected_client(who)
signal.signal(signal.SIGTERM, told_to_end)
if kind == "heartbeat":
    client.send_heartbeat()
# Anywhere within a check interval: a monitor that looks every five seconds is late by another amount each time.
time.sleep(random.uniform(0.0, 5.0))
if kind == "heartbeat":
    client.send_heartbeat()
else:
    client.start_section("step")
tell("hangs")
while True:
    time.sleep(60)
