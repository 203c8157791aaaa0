"""Writes the tables of docs/settings-history.md from the product's table.

    python -m tests.config.settings_history_page

Does not cover: the text around the tables.
"""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.fault_tolerance.config_fields import Effect, Option
from holdfast.fault_tolerance.launcher.command_line.args_parser import default_text
from holdfast.fault_tolerance.launcher.command_line.ft_options import OPTIONS, shown

PAGE = Path(__file__).parents[2] / "docs" / "settings-history.md"
BEGIN, END = "<!-- begin: {} -->", "<!-- end -->"
HEAD = [
    "| setting | value | default | since | meaning there | why it changes nothing here |",
    "|---" * 6 + "|",
]


def page(text: str) -> str:
    """`text` with the tables as they are today."""
    for effect in Effect:
        begin = BEGIN.format(effect.value)
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(END)
        text = "\n".join([before + begin, "", *_table(effect), "", END]) + after
    return text


def _table(effect: Effect) -> list[str]:
    reasons = [(each, each.no_effect) for each in OPTIONS if each.no_effect]
    return [*HEAD, *(_row(each, why.text) for each, why in reasons if why.effect is effect)]


def _row(past: Option, why: str) -> str:
    flags = [f"also `--{name}`" for name in past.names[2:] if not name.startswith("ft-param-")]
    cells = [
        ", ".join([f"`{shown(past)}`", *flags]),
        f"`{past.metavar}`".replace("|", "` or `"),
        default_text(past),
        past.since,
        _as_code(past.meaning),
        _as_code(why),
    ]
    return f"| {' | '.join(cells)} |"


def _as_code(text: str) -> str:
    return re.sub(r"--[a-z-]+|\{\w+\}|\b[A-Z]+_[A-Z_]+\b", r"`\g<0>`", text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
