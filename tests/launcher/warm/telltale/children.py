"""What the children of the script see: of multiprocessing by spawn and by fork, and workers of a DataLoader.

Does not cover: forkserver, which is spawn with a process in between.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import Any


def look(tell: Any, number: int) -> None:
    """In the child: which program it belongs to, and what it has."""
    tell.put((number, seen()))


def seen() -> dict[str, Any]:
    main = sys.modules["__main__"]
    return {
        "main": [main.__name__, getattr(main, "__file__", "missing"), "__mp_main__" in sys.modules],
        "main is both": sys.modules.get("__mp_main__") is main,
        "annotated": getattr(main, "annotated", "missing"),
        "argv": sys.argv,
        "path": sys.path,
        "cwd": os.getcwd(),
        "rank": os.environ.get("RANK"),
        "process": multiprocessing.current_process().name,
        "parent": multiprocessing.parent_process() is not None,
        "start method": multiprocessing.get_start_method(allow_none=True),
    }


def facts() -> dict[str, Any]:
    return {f"children: {method}": _children(method) for method in ("spawn", "fork")} | {
        f"workers: {method}": _workers(method) for method in ("fork", "spawn")
    }


def _children(method: str) -> list[Any]:
    context: Any = multiprocessing.get_context(method)
    answers = context.Queue()
    processes = [context.Process(target=look, args=(answers, number)) for number in range(2)]
    for process in processes:
        process.start()
    told = sorted((answers.get(timeout=60) for _ in processes), key=lambda each: int(each[0]))
    for process in processes:
        process.join(60)
    return [*told, [process.exitcode for process in processes]]


class Squares:
    """A data set whose items say who has made them."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Any]:
        import torch

        info = torch.utils.data.get_worker_info()
        return {"value": index * index, "worker": info.id if info else -1, "seen": seen()}


def _workers(method: str) -> list[Any]:
    import torch.utils.data

    data: Any = Squares()
    loader = torch.utils.data.DataLoader(
        data, batch_size=None, num_workers=2, multiprocessing_context=method, collate_fn=None
    )
    return list(loader)
