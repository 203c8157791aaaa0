"""Ranks as people read them, in logs and tables. Pure.

Does not cover: names; `holdfast.visible` makes them safe to show.
"""

from __future__ import annotations

from collections.abc import Iterable


def ranks_text(ranks: Iterable[int], most: int | None = None) -> str:
    """3, 4, 5, 9 as "rank 3–5, 9"; of more than `most` series, the first and an ellipsis."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    texts = [str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}–{b}" for a, b in runs]
    if most is not None and len(texts) > most:
        texts[most:] = ["…"]
    return f"rank {', '.join(texts)}" if texts else ""
