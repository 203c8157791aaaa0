"""Writes the tables of docs/settings-history.md from the product's table.

    python -m tests.config.settings_history_page

Does not cover: the text around the tables.
"""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.fault_tolerance.launcher.command_line.args_parser import default_text
from holdfast.fault_tolerance.launcher.command_line.ft_options import OPTIONS
from holdfast.fault_tolerance.settings_history import HISTORY, Effect, PastSetting

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
    rows = [_row(each) for each in HISTORY.values() if each.reason.effect is effect]
    return [*HEAD, *rows]


def _row(past: PastSetting) -> str:
    (option,) = (each for each in OPTIONS if each.key == past.name)
    flags = [f"also `--ft-{name.replace('_', '-')}`" for name in past.other_names]
    cells = [
        ", ".join([f"`{past.shown}`", *flags]),
        f"`{past.metavar}`".replace("|", "` or `"),
        default_text(option),
        past.since,
        _as_code(past.meaning),
        _as_code(past.reason.text),
    ]
    return f"| {' | '.join(cells)} |"


def _as_code(text: str) -> str:
    return re.sub(r"--[a-z-]+|\{\w+\}|\b[A-Z]+_[A-Z_]+\b", r"`\g<0>`", text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
