"""What is known of a GPU beside its times, as numbers that travel with a report, and as a clause of a verdict.

Pure. What always holds: a GPU's facts are `len(FIELDS)` numbers, NaN where unknown, and whole ones are small enough
to be exact as 32-bit floats.
Does not cover: reading them (`nvml`); whether a fact is why a rank is slow: a verdict only puts it beside.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

FIELDS = (
    "sm_clock",  # MHz, when the report was made
    "max_sm_clock",  # MHz
    "slowed_by",  # bits of `REASONS`
    "temperature",  # degrees Celsius
    "power",  # W
    "power_limit",  # W
    "corrected_ecc",  # errors since the last report
    "uncorrected_ecc",  # errors since the last report
    "remapped_rows",  # of memory, ever
    "remapping",  # 0: done, 1: waits for a reset of the GPU, 2: failed, 3: both
)
Facts = Sequence[float]
"""One number for each of `FIELDS`."""
UNKNOWN: tuple[float, ...] = (math.nan,) * len(FIELDS)
"""Those of a rank that has no GPU, or could not ask it."""

IDLE = 0x1
REASONS = {
    0x2: "applications clocks setting",
    0x4: "SW power cap",
    0x8: "HW slowdown",
    0x10: "sync boost",
    0x20: "SW thermal slowdown",
    0x40: "HW thermal slowdown",
    0x80: "HW power brake",
    0x100: "display clock setting",
}
"""Why clocks are low: NVML's bits (nvmlClocksEventReasons) and its names for them."""
KNOWN_BITS = 0x1FF
_ALWAYS_TOLD = 0x8 | 0x20 | 0x40 | 0x80
"""Heat and hardware. The rest is how many clusters run all the time, and told only if most others are without."""

SLOW_CLOCK = 0.97
"""Below this share of the others' clock it is reported. Clocks of equal GPUs differ by 1-2 % under load."""
SLOW_ALONE = 0.9
"""The same, of its own maximum, where nothing is known of others."""
HOT, HOTTER = 85.0, 10.0
"""Degrees Celsius; and those above the others."""


def typical(rows: Sequence[Facts]) -> tuple[float, ...]:
    """What most of some GPUs have: medians, NaN where none is known; of `slowed_by`, the bits of more than half."""
    found = []
    for index, field in enumerate(FIELDS):
        known = [row[index] for row in rows if math.isfinite(row[index])]
        if not known:
            found.append(math.nan)
        elif field == "slowed_by":
            bits = [
                bit for bit in (IDLE, *REASONS) if sum(bool(int(one) & bit) for one in known) * 2 > len(known)
            ]
            found.append(float(sum(bits)))
        else:
            found.append(float(median(known)))
    return tuple(found)


def told(values: Facts | None, median_of_others: Facts | None = None) -> str:
    """One clause on what is remarkable of a GPU; empty if nothing is. `median_of_others` is `typical` of those that it
    is compared with. ValueError if either is not `len(FIELDS)` numbers."""
    if values is None:
        return ""
    own, others = _named(values), _named(UNKNOWN if median_of_others is None else median_of_others)
    clock, reasons = _clock(own, others), _reasons(own, others)
    rest = [*_heat(own, others), *_power(own, others, bool(clock or reasons)), *_memory(own, others)]
    if clock:
        return "; ".join([f"its SM clock is {clock}{f', slowed by: {reasons}' if reasons else ''}", *rest])
    if reasons:
        return "; ".join([f"its clocks are slowed by: {reasons}", *rest])
    return f"its GPU: {'; '.join(rest)}" if rest else ""


def _named(values: Facts) -> dict[str, float]:
    return dict(zip(FIELDS, values, strict=True))


def _bits(facts: dict[str, float]) -> int:
    return int(facts["slowed_by"]) if math.isfinite(facts["slowed_by"]) else 0


def _clock(own: dict[str, float], others: dict[str, float]) -> str:
    clock, most, usual = own["sm_clock"], own["max_sm_clock"], others["sm_clock"]
    if _bits(own) & IDLE:  # it had nothing to do just then: its clock says nothing about how fast it works
        return ""
    usual = math.nan if _bits(others) & IDLE else usual
    expected = SLOW_CLOCK * usual if math.isfinite(usual) else SLOW_ALONE * most
    if not clock < expected:
        return ""
    of = f" of {most:,.0f}" if math.isfinite(most) else ""
    beside = f" (others {usual:,.0f})" if math.isfinite(usual) else ""
    return f"{clock:,.0f}{of} MHz{beside}"


def _reasons(own: dict[str, float], others: dict[str, float]) -> str:
    bits = _bits(own) & (_ALWAYS_TOLD | ~_bits(others))
    return ", ".join(name for bit, name in REASONS.items() if bits & bit)


def _heat(own: dict[str, float], others: dict[str, float]) -> list[str]:
    heat, usual = own["temperature"], others["temperature"]
    if heat >= usual + HOTTER:
        return [f"{heat:.0f} °C (others {usual:.0f})"]
    return [f"{heat:.0f} °C"] if heat >= HOT else []


def _power(own: dict[str, float], others: dict[str, float], slowed: bool) -> list[str]:
    """Its power if its clocks are low: is it held back, or without work? And a limit below the others'."""
    power, limit, usual = own["power"], own["power_limit"], others["power_limit"]
    lower = limit < 0.99 * usual
    if not math.isfinite(limit) or not (lower or (slowed and math.isfinite(power))):
        return []
    of = f"{power:,.0f} of {limit:,.0f} W" if math.isfinite(power) else f"power limit {limit:,.0f} W"
    return [f"{of} (others' limit {usual:,.0f})" if lower else of]


def _memory(own: dict[str, float], others: dict[str, float]) -> list[str]:
    found = []
    for field, kind in (("uncorrected_ecc", "uncorrected"), ("corrected_ecc", "corrected")):
        if own[field] >= 1:
            found.append(f"{own[field]:,.0f} new {kind} ECC error{'s' if own[field] > 1 else ''}")
    rows, usual = own["remapped_rows"], others["remapped_rows"]
    if rows >= 1 and not rows <= usual:
        found.append(f"{rows:,.0f} remapped memory row{'s' if rows > 1 else ''}")
    trouble = int(own["remapping"]) if math.isfinite(own["remapping"]) else 0
    if trouble & 1:
        found.append("row remapping waits for a GPU reset")
    if trouble & 2:
        found.append("row remapping failed")
    return found
