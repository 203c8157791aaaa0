"""Pages for a browser: one HTML file with all that a person needs, and nothing from elsewhere.

`html_page.html.j2` is the sheet that every page extends. What always holds: a page opens from a disk without a network
and runs no script (its content security policy forbids it), and every text from outside is escaped twice: for
terminals and for HTML.
Does not cover: links of a page, which the page itself quotes.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from .visible import escaped


def render(template: Path, values: dict[str, Any]) -> str:
    """The page of this template, which extends the sheet."""
    return str(_template(template).render(values)).lstrip()


@cache
def _template(path: Path) -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # slow to import, and only needed here

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: escaped(value) if type(value) is str else value,
    )
    return environment.from_string(path.read_text(encoding="utf-8"))
