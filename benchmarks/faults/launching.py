"""The command lines of a scenario, under each launcher. Pure but for asking for a free port.

The limits are the same for all who have limits; everything else is each launcher's default.
"""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from .kind import COUNTED, SHELL
from .scenarios import Scenario

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("program.py")

INITIAL, BETWEEN = 12.0, 6.0
SECTIONS = {"setup": 10.0, "step": 3.0, "data_loading": 2.0, "validation": 3.0, "checkpointing": 3.0}
"""Limits, seconds. Short, so that the corpus does not take a day; and so long that jobs side by side keep them."""

RESTARTS = 2


@dataclass(frozen=True)
class Runner:
    """Whose launcher, started how, with which client."""

    who: str
    launcher: tuple[str, ...]
    client: str

    @property
    def ours(self) -> bool:
        """Whether it is Holdfast's."""
        return self.who == "holdfast"


HOLDFAST = Runner("holdfast", (sys.executable, "-m", "holdfast.fault_tolerance.launcher"), "holdfast")
TORCHRUN = Runner("torchrun", (sys.executable, "-m", "torch.distributed.run"), "")


def command(runner: Runner, scenario: Scenario, node: int, folder: Path, port: int) -> list[str]:
    """Of this node's launcher."""
    line = [*runner.launcher, f"--nproc-per-node={scenario.nodes[node]}", f"--max-restarts={RESTARTS}"]
    line += _rendezvous(runner, scenario, node, port)
    if runner.who != "torchrun":
        line += _limits(runner, scenario, node)
    if runner.ours:
        line += [f"--ft-run-dir={folder / run_directory(scenario, node)}", *scenario.options]
    return [*line, *_program(runner, scenario, folder)]


def run_directory(scenario: Scenario, node: int) -> str:
    """Of this node, below the scenario's folder."""
    return "run" if scenario.shared or len(scenario.nodes) == 1 else f"run-{'ab'[node]}"


def free_port() -> int:
    """One that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _rendezvous(runner: Runner, scenario: Scenario, node: int, port: int) -> list[str]:
    if len(scenario.nodes) == 1:
        return ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    loses = scenario.truth is not None and scenario.truth.blames == "node"
    conf = f"--rdzv-conf=last_call_timeout=2,is_host={int(node == 0)}"
    common = ["--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}", "--rdzv-id=corpus", conf]
    timeout = ["--ft-node-timeout=4" if loses else "--ft-node-timeout=20"] if runner.ours else []
    rank = [f"--node-rank={node}"] if runner.ours else []
    return [f"--nnodes={'1:2' if loses else '2'}", "--local-addr=localhost", *common, *rank, *timeout]


def _limits(runner: Runner, scenario: Scenario, node: int) -> list[str]:
    longer = 3.0 if scenario.kind == "other_node" and node == scenario.node else 1.0
    sections = ",".join(f"{name}:{longer * seconds:g}" for name, seconds in SECTIONS.items())
    between = longer * BETWEEN
    if scenario.truth is not None and scenario.truth.blames == "node":
        # What is to be found is the node, not the ranks that wait for it.
        sections = ",".join(f"{name}:30" for name in SECTIONS)
        between = 30.0
    return [
        f"--ft-param-initial_rank_heartbeat_timeout={INITIAL:g}",
        f"--ft-param-rank_heartbeat_timeout={between:g}",
        f"--ft-param-rank_section_timeouts={sections}",
    ]


def _program(runner: Runner, scenario: Scenario, folder: Path) -> list[str]:
    arguments = [str(PROGRAM), "" if scenario.variant == COUNTED else runner.client, str(folder)]
    if scenario.variant != SHELL:
        return arguments
    return ["--no-python", "sh", "-c", '"$@"; exit $?', "sh", sys.executable, *arguments]
