"""Where a rank is in its training, as one number. Pure.

A rank comes from boundary to boundary: after each training batch, and inside a validation after each of its batches
and at its end. A position names a boundary, and positions are ordered as the boundaries are:
(k, 0) < (k, 1) < … < (k, END) < (k+1, 0) for k training batches. A validation with several data loaders has its
batches and an end in each of them: (loader, 1) < (loader, 2) < … < (loader, LOADER_END) < (loader+1, 1) < … < END.

What always holds: a position fits into 63 bits, and the batches of the first loader are those of a validation that has
one. Does not cover: validations nested in one another; more than 255 data loaders, or 65534 batches in one (the rest
counts as one place). A plain loop with more batches in a validation is right, but described as if it had loaders.
"""

from __future__ import annotations

VALIDATION_BITS = 24
LOADER_BITS = 16  # of these
MOST_BATCHES = (1 << 63 - VALIDATION_BITS) - 1

END = (1 << VALIDATION_BITS) - 1
"""Stands for the end of a validation, whatever number of batches it had."""
LOADER_END = (1 << LOADER_BITS) - 1
"""Stands for the end of a validation's data loader, whatever number of batches it had."""
MOST_LOADERS = END >> LOADER_BITS


def position(batches: int, validation: int = 0) -> int:
    """After `batches` training batches of this start of the rank; in a validation, after `validation` of its batches.

    `validation` is 0 outside, `END` at the end of one, and what `in_loader` says where a validation has several data
    loaders. Raises ValueError for what is negative or too large.
    """
    if not (0 <= batches <= MOST_BATCHES and validation >= 0):
        raise ValueError(f"no position: {batches} batches, {validation} of a validation")
    if validation >= END:
        validation = END if validation == END else END - 1
    return batches << VALIDATION_BITS | validation


def in_loader(loader: int, batch: int) -> int:
    """The `validation` of `position` at this batch (from 1) of a validation's data loader (from 0).

    `batch` is `LOADER_END` at the loader's end. Raises ValueError for what is below that.
    """
    if loader < 0 or batch < 1:
        raise ValueError(f"no position: batch {batch} of data loader {loader}")
    if loader >= MOST_LOADERS:
        return END - 1
    if batch != LOADER_END:
        batch = min(batch, LOADER_END - 1)
    return loader << LOADER_BITS | batch


def batches_of(place: int) -> int:
    """How many training batches lie before it."""
    return place >> VALIDATION_BITS


def validation_of(place: int) -> int:
    """Where in a validation it is: 0 outside of one, END at the end of one."""
    return place & END


def inside_validation(place: int) -> bool:
    """Whether the next boundaries are those of a validation that has begun."""
    return 0 < validation_of(place) < END


def loader_of(validation: int) -> tuple[int, int]:
    """The data loader (from 0) and its batch, as they were given to `in_loader`."""
    return validation >> LOADER_BITS, validation & LOADER_END


def describe(place: int) -> str:
    """For people: `after batch 120`, `after batch 120, in validation, batch 7` (`…, loader 2, batch 7`)."""
    batches, validation = batches_of(place), validation_of(place)
    text = f"after batch {batches}" if batches else "before the first batch"
    if validation == END:
        return f"{text}, at the end of validation"
    return f"{text}, in validation, {_in_validation(validation)}" if validation else text


def _in_validation(validation: int) -> str:
    loader, batch = loader_of(validation)
    if batch == LOADER_END:
        return f"at the end of loader {loader + 1}"
    return f"loader {loader + 1}, batch {batch}" if loader else f"batch {batch}"
