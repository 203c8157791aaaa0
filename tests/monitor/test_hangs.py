"""A real monitor process finds every kind of hang, at its limit, and no other."""

from __future__ import annotations

import signal
import time

from holdfast.fault_tolerance.board import BoardWriter, Limits
from tests.processes import Spawner

from .conftest import MakeNode
from .node import Node, stubborn, victim

LIMIT = 0.5


def heartbeats(hand: BoardWriter) -> None:
    hand.connect()
    hand.heartbeat()


def one_section(hand: BoardWriter) -> None:
    hand.connect()
    hand.start_section("step")


def test_an_outer_section_is_found_while_inner_ones_toggle(node: Node) -> None:
    (rank,) = node.start(Limits(sections={"epoch": 1.0, "step": 30.0}))
    rank.hand.connect()
    rank.hand.start_section("epoch")

    def toggle() -> bool:
        rank.hand.start_section("step")
        rank.hand.end_section("step")
        return not rank.lives

    node.until(toggle, "the outer section was not found")
    verdict = node.hear("verdict")
    assert (verdict["section"], verdict["where"].split(" > ")[0]) == ("epoch", "epoch")


def test_a_rank_that_ignores_the_signal_is_killed_after_the_patience(
    make_node: MakeNode, spawn: Spawner
) -> None:
    node = make_node(termination=signal.SIGTERM, patience=0.5)
    (rank,) = node.start(Limits(subsequent=LIMIT), stubborn(spawn))
    heartbeats(rank.hand)
    sent = node.hear("signal_sent")
    escalated = node.hear("escalated")
    assert (sent["signal"], escalated["signal"]) == ("SIGTERM", "SIGKILL")
    assert rank.process.wait() == -signal.SIGKILL
    assert len(node.heard("verdict")) == 1, "one hang is one verdict"


def test_a_section_without_a_limit_does_not_hide_a_later_hang(node: Node) -> None:
    (rank,) = node.start(Limits(subsequent=LIMIT, sections={"step": None}))
    rank.hand.connect()
    for name in ("mine", "step"):
        rank.hand.start_section(name)
    node.looks(3)
    assert node.heard("verdict") == []
    rank.hand.heartbeat()
    verdict = node.hear("verdict")
    assert verdict["reason"] == "heartbeat"
    assert verdict["where"] == "mine > step"


def test_the_check_interval_is_no_resolution(make_node: MakeNode) -> None:
    """A limit that begins while the monitor sleeps is met although it would sleep for much longer."""
    node = make_node(check_interval=3600.0)
    (rank,) = node.start(Limits(sections={"step": 0.1}))
    rank.hand.connect()
    node.looks(1)
    one_section(rank.hand)
    assert rank.process.wait() == -signal.SIGKILL


def test_of_all_who_stand_still_the_one_that_did_so_first_is_accused(node: Node, spawn: Spawner) -> None:
    """The others wait for it in a collective: they are described, not accused."""
    ranks = node.start(Limits(sections={"step": LIMIT}), *(victim(spawn) for _ in range(3)))
    for rank in (ranks[2], ranks[0], ranks[1]):
        one_section(rank.hand)
    verdict = node.hear("verdict")
    assert verdict["rank"] == 2
    assert [(other["rank"], other["where"]) for other in verdict["others"]] == [(0, "step"), (1, "step")]
    assert ranks[2].process.wait() == -signal.SIGKILL
    node.looks(2)
    assert len(node.heard("verdict")) == 1
    assert ranks[0].lives
    assert ranks[1].lives


def test_the_rank_that_the_others_plainly_wait_for_is_accused(node: Node, spawn: Spawner) -> None:
    """It has passed no limit itself; and the sentence says whose was passed, and what is plain."""
    ranks = node.start(Limits(sections={"step": LIMIT}), *(victim(spawn) for _ in range(3)))
    ranks[1].hand.connect()
    ranks[1].process.send_signal(signal.SIGSTOP)
    for rank in (ranks[0], ranks[2]):
        one_section(rank.hand)
    verdict = node.hear("verdict")
    assert (verdict["rank"], verdict["state"]) == (1, "T")
    assert verdict["text"].startswith("Rank 0: Section 'step' did not end. Waited ")
    assert "Rank 1 is stopped" in verdict["text"]
    assert [other["rank"] for other in verdict["others"]] == [0, 2]
    assert ranks[1].process.wait() == -signal.SIGKILL
    assert ranks[0].lives and ranks[2].lives


def test_when_the_cycle_goes_on_regardless_the_next_one_is_accused(
    make_node: MakeNode, spawn: Spawner
) -> None:
    node = make_node(patience=0.1)
    ranks = node.start(Limits(sections={"step": LIMIT}), victim(spawn), victim(spawn))
    for rank in ranks:
        one_section(rank.hand)
    assert [node.hear("verdict")["rank"] for _ in ranks] == [0, 1]
    assert [rank.process.wait() for rank in ranks] == [-signal.SIGKILL] * 2


def test_who_comes_to_a_stand_later_is_accused_at_its_own_limit(node: Node, spawn: Spawner) -> None:
    """No rank has to wait for what another one did before it."""
    first, second = node.start(Limits(sections={"step": LIMIT}), victim(spawn), victim(spawn))
    one_section(first.hand)
    assert node.hear("verdict")["rank"] == 0
    began = time.monotonic()
    one_section(second.hand)
    verdict = node.hear("verdict")
    assert verdict["rank"] == 1
    assert verdict["waited"] <= time.monotonic() - began + 0.1


def test_the_next_cycle_is_watched_and_the_one_before_is_not(node: Node, spawn: Spawner) -> None:
    (old,) = node.start(Limits(subsequent=LIMIT))
    new = node.start(Limits(subsequent=LIMIT), victim(spawn), cycle=1)[-1]
    heartbeats(new.hand)
    heartbeats(old.hand)
    verdict = node.hear("verdict")
    assert (verdict["cycle"], verdict["pid"]) == (1, new.process.pid)
    node.looks(2)
    assert old.lives
