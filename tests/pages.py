"""Programs that stand in the documentation, to be run as they stand there."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def block(page: str, title: str) -> str:
    """The Python block of this title."""
    text = (DOCS / page).read_text()
    found = re.search(rf'^```python title="{title}"\n(.*?)^```$', text, re.MULTILINE | re.DOTALL)
    assert found, f"{page} has no block {title!r}"
    return found[1]
