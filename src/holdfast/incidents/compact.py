"""A node's evidence made small enough to go through the rendezvous store, and back. Pure.

What stays is what verdicts and reports are made of: boards, states, exits, exceptions, the main thread's innermost
frames, the last collectives. At 8 ranks it is a few kilobytes, so two thousand nodes are a few megabytes.
Does not cover: everything else; it is in the node's own fragment, where the run directory is shared.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace

from .encoding import decoded, encoded
from .evidence import BoardFacts, NodeEvidence, Process, RankEvidence, Thread

FRAMES, COLLECTIVES, LINES, CHARACTERS = 12, 4, 3, 2000
LARGEST = 1 << 20
"""Bytes that are unpacked at most: what the store holds is not trusted."""


def packed(node: NodeEvidence) -> str:
    """As text for the store."""
    small = replace(node, ranks=tuple(_small(rank) for rank in node.ranks))
    return base64.b64encode(zlib.compress(json.dumps(encoded(small)).encode(), 6)).decode()


def unpacked(text: str) -> NodeEvidence:
    """The reverse. Raises ValueError for anything else."""
    try:
        plain = zlib.decompressobj().decompress(base64.b64decode(text), LARGEST)
    except zlib.error as error:
        raise ValueError(f"no packed evidence: {error}") from error
    return decoded(NodeEvidence, json.loads(plain))


def _small(rank: RankEvidence) -> RankEvidence:
    return replace(
        rank,
        board=rank.board and _small_board(rank.board),
        process=rank.process and _small_process(rank.process),
        stacks=tuple(_small_stack(thread) for thread in rank.stacks if thread.main or thread.holds_gil),
        collectives=rank.collectives[-COLLECTIVES:],
        raised=rank.raised and replace(rank.raised, traceback=rank.raised.traceback[-CHARACTERS:]),
        last_lines=rank.last_lines[-LINES:],
    )


def _small_board(board: BoardFacts) -> BoardFacts:
    return replace(board, events=())


def _small_process(process: Process) -> Process:
    odd = tuple(child for child in process.children if child.state in ("T", "t", "D", "Z"))
    return replace(process, threads=process.threads[:1], children=odd[:8], network_files=())


def _small_stack(thread: Thread) -> Thread:
    return replace(thread, frames=thread.frames[:FRAMES])
