"""Where faults enter a program: its own process asks at each place whether it is the one, and notes the moment first.

Outside of the scenario's phase, step, rank and first cycle every call does nothing. The arithmetic of the programs is
here too: whole numbers, so that the order of sums does not matter and the result is exact on any number of ranks; and
so are their files. Methods have names that give no fault away on a stack. No torch is imported here.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

VARIABLE = "HOLDFAST_CORPUS_SCENARIO"
ENTERED, LATE = 0.3, 0.8
"""Seconds: when it happens in a rank that waits in a collective, and when the others enter it."""
WIDTH, SHARDS = 8, 16


def numbers(step: int, shard: int) -> list[int]:
    """One shard's data of a step."""
    return [(7 * step + 3 * shard + 5 * place) % 11 for place in range(WIDTH)]


def row_of(step: int, shards: Iterable[int], offset: int) -> list[int]:
    """The sum of these shards' data of a step."""
    return [sum(column) for column in zip(*(numbers(step, shard + offset) for shard in shards), strict=True)]


def result(steps: int) -> str:
    """The weights after this number of steps of SGD with a rate of 1/4."""
    totals = (
        sum(numbers(step, shard)[place] for step in range(1, steps + 1) for shard in range(SHARDS))
        for place in range(WIDTH)
    )
    return formatted([-total / 4 for total in totals])


def formatted(weights: Sequence[float]) -> str:
    """As the programs write them."""
    return " ".join(f"{weight:.2f}" for weight in weights)


def no_core() -> None:
    """A fault that ends this process leaves no core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def ask(port: int) -> None:
    """Ask a service that does not answer."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET\n")
        connection.recv(1)


def background(target: Callable[..., Any], *arguments: Any) -> threading.Thread:
    """Run it in a thread that Python does not wait for."""
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


class InjectionPoint:
    """The scenario, as this rank sees it."""

    group_timeout = timedelta(minutes=10)

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._given: dict[str, Any] = json.loads(os.environ[VARIABLE])
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.cycle = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        self.kind: str = self._given["kind"]
        self.workers: int = self._given["workers"]
        self.port: int = self._given["port"]
        self.chosen: int = self._given["rank"]
        """The rank in which it happens."""
        self.ward: Any = None
        """What actions use of the program: its client, or the object that it runs."""
        self._is_replaced = False
        self.mine = self.cycle == 0 and (self._given["everyone"] or self.rank == self._given["rank"])
        self._write(f"began-{self.cycle}-{self.rank}", os.environ.get("FT_RANK_MONITOR_IPC_SOCKET", ""))

    @cached_property
    def _fault(self) -> Any:
        from benchmarks.faults.corpus import fault_in

        return fault_in(self._given["file"], self.kind)

    def at(self, phase: str, step: int = 0) -> None:
        """A place in the program's own code."""
        if self._is_due(phase, step, "code"):
            self._happen()

    def path(self, place: str, phase: str, step: int, path: str) -> str:
        """Where a file is read (`data`) or written (`storage`): another one, or "" when that has been done."""
        if not self._is_due(phase, step, place):
            return path
        self.note()
        found = self._fault.do(self, path)
        return path if found is None else found

    def hook(self, tensor: Any, phase: str, step: int) -> None:
        """A tensor whose hooks run in the backward pass."""
        if self._is_due(phase, step, "hook"):
            tensor.register_hook(lambda gradient: self._happen())

    def instead(self, place: str, phase: str, step: int) -> Callable[..., None] | None:
        """The action that replaces this communication of this rank, the first of its step, if there is one."""
        if self._is_replaced or not self._is_due(phase, step, place):
            return None
        self._is_replaced = True
        self.note()
        action: Callable[..., None] = self._fault.do
        return action

    def joint(self, phase: str, step: int) -> Callable[..., None] | None:
        """What all ranks do next to this communication, one of them in another way than the rest, if anything."""
        if self.cycle or not self._is_now(phase, step) or self._fault.at != "joint":
            return None
        if self.mine:
            self.note()
        action: Callable[..., None] = self._fault.do
        return action

    def enters(self, phase: str, step: int) -> None:
        """Before a collective. An action that any thread can do happens inside of it, any other one here."""
        if phase != "collective" or not self._is_now(phase, step) or self.cycle:
            return
        if self._fault.at != "code" or not self._fault.anywhere:
            self.at(phase, step)
        elif self.mine:
            timer = threading.Timer(ENTERED, self._happen)
            timer.daemon = True
            timer.start()
        else:
            time.sleep(LATE)

    def combine(self, call: Callable[[], Any], tensor: Any, phase: str, step: int, group: Any = None) -> None:
        """A collective of all ranks, or what the fault has next to it or instead of it."""
        self.enters(phase, step)
        if (joint := self.joint(phase, step)) is not None:
            joint(self, tensor, group)
        if (action := self.instead("collective", phase, step)) is not None:
            action(self, tensor)
        else:
            call()

    def offset(self, step: int, phase: str = "step") -> int:
        """What is added to the shards' numbers. The file is read each time, as datasets do."""
        return int(Path(self.path("data", phase, step, str(self.folder / "data"))).read_text())

    def saved_step(self) -> int:
        """That of the last checkpoint."""
        return int(json.loads((self.folder / "checkpoint").read_text())["step"])

    def get(self, step: int, width: int) -> list[float]:
        """This rank's weights of a checkpoint; zeros before the first one."""
        found: list[float] = json.loads(self._part(step).read_text()) if step else [0.0] * width
        return found

    def put(self, step: int, state: Sequence[float]) -> None:
        """This rank's weights for a checkpoint."""
        with open(self.path("storage", "checkpoint", step, str(self._part(step))), "w") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())

    def commit(self, step: int) -> None:
        """The parts of all ranks are written; rank 0 makes them the checkpoint."""
        if self.rank == 0:
            self._write("checkpoint", json.dumps({"step": step}))

    def write_result(self, weights: Sequence[float]) -> None:
        """Rank 0 writes the weights at the end."""
        if self.rank == 0:
            (self.folder / "result").write_text(formatted(weights))

    def finish(self) -> None:
        """The program's last line."""
        self._write(f"done-{self.cycle}-{self.rank}", "")

    def note(self) -> None:
        """Record that it happens now."""
        moment = {"mono": time.monotonic(), "pid": os.getpid(), "rank": self.rank}
        self._write(f"happens-{self.rank}", json.dumps(moment))

    def _is_now(self, phase: str, step: int) -> bool:
        return bool(phase == self._given["phase"] and step == self._given["step"])

    def _is_due(self, phase: str, step: int, place: str) -> bool:
        return self.mine and self._is_now(phase, step) and bool(self._fault.at == place)

    def _happen(self) -> None:
        self.note()
        self._fault.do(self)

    def _part(self, step: int) -> Path:
        return self.folder / f"part-{self.rank}.{step}"

    def _write(self, name: str, text: str) -> None:
        temporary = self.folder / f".{name}-{os.getpid()}"
        temporary.write_text(text)
        temporary.replace(self.folder / name)
