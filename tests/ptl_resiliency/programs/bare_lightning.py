"""Import this first: Lightning is loaded as in `without_extras`."""

from without_extras import without_extras

with without_extras():
    import lightning.pytorch  # noqa: F401
