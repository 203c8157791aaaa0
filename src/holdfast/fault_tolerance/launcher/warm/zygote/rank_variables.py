"""The variables that each rank has for itself, from torch's agent or from Holdfast, and that a zygote has not.

Also used by the launcher. Does not cover: what a user's own program sets for each rank.
"""

from __future__ import annotations

NAMES = frozenset(
    {"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"}
    | {"LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"}
)
PREFIXES = ("TORCHELASTIC_", "FT_", "HOLDFAST_")


def of_a_rank(name: str) -> bool:
    """Whether the variable is one of these."""
    return name in NAMES or name.startswith(PREFIXES)
