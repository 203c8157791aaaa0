"""Evidence that goes through the store: small, and the same where verdicts are made of it."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.incidents.compact import FRAMES, packed, unpacked
from holdfast.incidents.encoding import decoded, encoded
from holdfast.incidents.evidence import (
    BoardFacts,
    Collective,
    Exit,
    Frame,
    KernelThread,
    NodeEvidence,
    OpenSection,
    PassedLimit,
    Process,
    Raised,
    RankEvidence,
    RingEvent,
    Thread,
)
from holdfast.incidents.verdict import Verdict


def _rank(number: int) -> RankEvidence:
    return RankEvidence(
        rank=number,
        local_rank=number % 8,
        pid=1000 + number,
        node="gpu-12",
        board=BoardFacts(
            connected=True,
            step=4181,
            sections=(OpenSection("data_loading", 31.0),),
            events=tuple(RingEvent("heartbeat", 0.1 * n) for n in range(500)),
        ),
        process=Process(state="S", threads=tuple(KernelThread(n, "pt_main_thread", "S") for n in range(64))),
        stacks=(
            Thread("MainThread", tuple(Frame(f"f{n}", "dataset.py", n) for n in range(40)), main=True),
            Thread("pin_memory", (Frame("wait", "threading.py", 1),)),
        ),
        collectives=tuple(Collective(n, "all_reduce", sizes="[[1024, 8]]") for n in range(16)),
        exit=Exit(-9, "killed by SIGKILL"),
        raised=Raised("ValueError", "bad batch", "x" * 20000),
        passed=PassedLimit("heartbeat", 31.0, 30.0),
    )


def test_eight_ranks_are_a_few_kilobytes_and_keep_what_verdicts_are_made_of() -> None:
    node = NodeEvidence("gpu-12", "hang", ranks=tuple(map(_rank, range(8))), nodes=2)
    text = packed(node)
    assert len(text) < 8192
    back = unpacked(text)
    assert (back.node, back.trigger, back.nodes) == ("gpu-12", "hang", 2)
    for rank, small in zip(node.ranks, back.ranks, strict=True):
        assert (small.rank, small.pid, small.exit, small.passed) == (
            rank.rank,
            rank.pid,
            rank.exit,
            rank.passed,
        )
        assert small.board is not None and rank.board is not None
        assert (small.board.step, small.board.sections) == (4181, rank.board.sections)
        (main,) = small.stacks
        assert main.frames == rank.stacks[0].frames[:FRAMES]
        assert small.collectives == rank.collectives[-4:]


@pytest.mark.parametrize("text", ["", "no base64!", "AAAA", packed(NodeEvidence("a", "hang"))[:-8]])
def test_what_is_no_evidence_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        unpacked(text)


def test_what_unpacks_to_more_than_evidence_ever_is_is_refused() -> None:
    import base64
    import zlib

    bomb = base64.b64encode(zlib.compress(b'{"node":"' + b"a" * 50_000_000 + b'"}')).decode()
    with pytest.raises(ValueError):
        unpacked(bomb)


def test_json_keeps_everything_and_passes_over_fields_of_newer_versions() -> None:
    node = NodeEvidence("gpu-12", "hang", ranks=(_rank(0),), notes=("a fact",))
    value = json.loads(json.dumps({**encoded(node), "of_tomorrow": 1}))
    assert decoded(NodeEvidence, value) == node
    verdict = Verdict("stopped", "Rank 1 is stopped.", "high", 1, "gpu-12", (0,))
    assert decoded(Verdict, json.loads(json.dumps(encoded(verdict)))) == verdict


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["node", "ranks", "x"]), inner)
    ),
    max_leaves=8,
)


@given(JSON)
def test_whatever_stands_in_a_file_is_evidence_or_a_value_error(value: object) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(decoded(NodeEvidence, value), NodeEvidence)
