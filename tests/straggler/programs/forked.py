"""Ranks of a program, forked from here, so that torch is imported once.

Arguments: a folder, how many, the program, and words for it, which it gets after the address of a store and its rank.
What a rank writes is in `RANK.out` and `RANK.err` of the folder, how it ended in `RANK.status`.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import torch.distributed  # noqa: F401

folder, size, program, *words = sys.argv[1:]
ranks = {}
for rank in range(int(size)):
    child = os.fork()
    if child == 0:
        for descriptor, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{folder}/{rank}.{name}", os.O_WRONLY | os.O_CREAT), descriptor)
        sys.argv = [program, f"file://{folder}/store", str(rank), *words]
        runpy.run_path(program, run_name="__main__")
        sys.exit()
    ranks[child] = rank
for _ in range(int(size)):
    child, status = os.wait()
    ended = Path(f"{folder}/{ranks[child]}.status")
    ended.with_suffix(".new").write_text(str(os.waitstatus_to_exitcode(status)))
    ended.with_suffix(".new").rename(ended)
