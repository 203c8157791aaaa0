"""Where a rank is in its training, as one number. Pure.

A rank comes from boundary to boundary: after each training batch, and inside a validation after each of its batches
and at its end. A position names a boundary, and positions are ordered as the boundaries are:
(k, 0) < (k, 1) < … < (k, END) < (k+1, 0) for k training batches.

What always holds: a position fits into 63 bits. Does not cover: more than 16 million batches in one validation (they
count as one place), and validations nested in one another.
"""

from __future__ import annotations

VALIDATION_BITS = 24
MOST_BATCHES = (1 << 63 - VALIDATION_BITS) - 1

END = (1 << VALIDATION_BITS) - 1
"""Stands for the end of a validation, whatever number of batches it had."""


def position(batches: int, validation: int = 0) -> int:
    """After `batches` training batches of this start of the rank; in a validation, after `validation` of its batches.

    `validation` is 0 outside, and `END` at the end of one. Raises ValueError for what is negative or too large.
    """
    if not (0 <= batches <= MOST_BATCHES and validation >= 0):
        raise ValueError(f"no position: {batches} batches, {validation} of a validation")
    if validation >= END:
        validation = END if validation == END else END - 1
    return batches << VALIDATION_BITS | validation


def batches_of(place: int) -> int:
    """How many training batches lie before it."""
    return place >> VALIDATION_BITS


def validation_of(place: int) -> int:
    """How many batches of the validation lie before it: 0 outside of one, END at the end of one."""
    return place & END


def describe(place: int) -> str:
    """For people: `after batch 120`, `after batch 120, in validation, batch 7`."""
    batches, validation = batches_of(place), validation_of(place)
    text = f"after batch {batches}" if batches else "before the first batch"
    if validation == END:
        return f"{text}, at the end of validation"
    return f"{text}, in validation, batch {validation}" if validation else text
