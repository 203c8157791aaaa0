"""Seconds that importing a name takes in a rank, which has imported torch by then. argv: its module, the name."""

import importlib
import json
import sys
import time

import torch.distributed  # noqa: F401

began = time.perf_counter()
getattr(importlib.import_module(sys.argv[1]), sys.argv[2])
print(json.dumps({"seconds": time.perf_counter() - began}))
