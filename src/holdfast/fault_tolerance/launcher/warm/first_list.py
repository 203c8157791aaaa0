"""What to import ahead for a script of which nothing is known yet: torch, unless it plainly does without,
and torch._dynamo where it names an optimizer. Pure.

Does not cover: a script that imports by other means than ``import`` statements; its ranks import torch themselves.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings

from .zygote.preload import Entry

TORCH: tuple[Entry, ...] = (("torch", None), ("torch.distributed", None))
DYNAMO: tuple[Entry, ...] = (("torch._dynamo", None),)
NAMES_DYNAMO = re.compile(rb"\b(optim|use_deterministic_algorithms)\b")
"""Parts of torch whose first use imports torch._dynamo: a second in each rank, after the script has begun."""


def first_list(source: bytes) -> tuple[Entry, ...]:
    """For the text of this script. One that imports nothing but the standard library needs no torch."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the ranks will show them
            nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return TORCH
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "." for node in nodes if isinstance(node, ast.ImportFrom)}
    if all(name.partition(".")[0] in sys.stdlib_module_names for name in names):
        return ()
    return (*TORCH, *DYNAMO) if NAMES_DYNAMO.search(source) else TORCH
