"""Network cards of InfiniBand and RoCE, by sysfs: the state of their ports, links that went down, their speed.

A port that is not active at the launcher's start may be an unused one: it is no finding. Speeds are compared
within a kind of card (`hca_type`).
Source: Documentation/ABI/stable/sysfs-class-infiniband.
Does not cover: cards without an entry in sysfs (EFA before its driver is loaded), plain Ethernet, port 2 and later of a
card unless the templates name it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from . import ABSENT, GOOD, SICK, WARNING, Finding

CHECK = "network cards"
FOLDER = "/sys/class/infiniband"
STATE = f"{FOLDER}/{{nic}}/ports/1/state"
LINK_DOWN = f"{FOLDER}/{{nic}}/ports/1/counters/link_downed"
ACTIVE = "ACTIVE"


@dataclass(frozen=True, slots=True)
class Card:
    """A card at one moment; a fact is "" where it cannot be read."""

    name: str
    state: str = ""
    """Such as `ACTIVE`."""
    downed: int | None = None
    """How often its link went down."""
    rate: float | None = None
    """Gb/s."""
    kind: str = ""
    why_not: str = ""
    """Why a fact is missing."""


def read(state: str | None, link_down: str | None) -> list[Card]:
    """The cards of this machine. `state` and `link_down` are paths with {nic} or {dev_name}; None: not to be read."""
    try:
        names = sorted(os.listdir(FOLDER))
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        problems: list[str] = []

        def content(path: str, problems: list[str] = problems) -> str:
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    return file.read(200).strip()
            except OSError as error:
                problems.append(f"{path}: {error.strerror}")
                return ""

        port = f"{FOLDER}/{name}/ports/1"
        state_text = content(_filled(state, name)).rpartition(":")[2].strip() if state else ""
        downed = content(_filled(link_down, name)) if link_down else ""
        why_not = problems[0] if problems else ""
        rate = content(f"{port}/rate").partition(" ")[0]
        found.append(
            Card(
                name,
                state_text,
                int(downed) if downed.isdecimal() else None,
                float(rate) if rate.replace(".", "", 1).isdecimal() else None,
                content(f"{FOLDER}/{name}/hca_type"),
                why_not,
            )
        )
    return found


def _filled(template: str, name: str) -> str:
    return template.replace("{nic}", name).replace("{dev_name}", name)


def judged(cards: list[Card], start: list[Card], last: list[Card]) -> list[Finding]:
    """What these facts mean. Pure. `start` has the cards at the launcher's start, `last` those of the check before.

    A port that was not active at the start is not judged. Cards of one kind may run at several speeds on purpose.
    """
    if not cards and not start:
        return [Finding(CHECK, ABSENT, f"none in {FOLDER}")]
    found: list[Finding] = []
    now, before = {card.name: card for card in cards}, {card.name: card for card in start}
    counts = {card.name: card.downed for card in last}

    def sick(text: str) -> None:
        found.append(Finding(CHECK, SICK, text, is_hardware=True))

    for name, old in before.items():
        state = now[name].state if name in now else "gone"
        if old.state == ACTIVE and state not in ("", ACTIVE):
            sick(f"the port of {name} is {state}, and was {ACTIVE} at the start")
    for card in cards:
        if card.name in before and before[card.name].state not in ("", ACTIVE):
            continue
        count, old_count = card.downed, counts.get(card.name)
        times = count - old_count if count is not None and old_count is not None else 0
        if times > 0:
            sick(
                f"the link of {card.name} went down {times} time{'s' if times > 1 else ''} since the last check"
            )
        rates = [each.rate for each in cards if each.kind == card.kind and each.state == ACTIVE and each.rate]
        if card.state == ACTIVE and card.rate and card.rate < max(rates):
            text = f"{card.name} runs at {card.rate:g} Gb/s, and others of its kind at {max(rates):g}"
            found.append(Finding(CHECK, WARNING, text))
    found += [Finding(CHECK, WARNING, f"not checked: {card.why_not}") for card in cards if card.why_not]
    states = ", ".join(f"{card.name} {card.state or 'unknown'}" for card in cards)
    return found or [Finding(CHECK, GOOD, states)]
