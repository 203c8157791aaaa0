"""What the commands share: values of options, the run directory, tables, a report's page, and text for standard output.

Does not cover: options of `ft_launcher`.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime

from ..fault_tolerance.errors import ConfigError, HoldfastError


def whole_number(least: int = 1) -> Callable[[str], int]:
    """A `type=` of argparse: numbers from `least` on."""

    def convert(text: str) -> int:
        if text.strip().isdecimal() and (number := int(text)) >= least:
            return number
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from {least}")

    return convert


def seconds(text: str) -> float:
    """A `type=` of argparse: a duration of 0 s or more."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0.0):
        raise argparse.ArgumentTypeError(f"{text!r}: give a number of seconds, 0 or more")
    return value


def prepared_run_dir(chosen: str | None, name: str) -> str:
    """`journal.run_dir.prepare_run_dir` for `--run-dir`; warnings are logged.

    Raises:
        ConfigError: if the directory cannot be used.
    """
    from ..autoresume.run_dir import say
    from ..journal.run_dir import RunDirError, prepare_run_dir

    try:
        return prepare_run_dir(
            chosen, name, lambda text: say(f"warning: {text.replace('--ft-run-dir', '--run-dir')}")
        )
    except RunDirError as error:
        raise ConfigError(
            f"{error.problem}. Give --run-dir a folder of your own; one that does not exist is made"
        ) from None


def one_run(path: str | None) -> str:
    """The run directory of a command that is for one run; by default the newest for which none was chosen.

    Raises:
        HoldfastError: It is a folder of several, or there is no run.
    """
    from ..journal.reader import default_runs, holds_journal, runs_in

    if path is None:
        return default_runs()[0].path
    if not holds_journal(path) and (runs := runs_in([path])):
        raise HoldfastError(
            f"{path} has {len(runs)} run{'s' * (len(runs) != 1)} in it. Name one: holdfast incidents {path} lists them."
        )
    return path


def encodable(text: str) -> str:
    """The text in characters that standard output can encode: LC_ALL=C may have nothing but ASCII."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        plain = text.replace("─", "-").replace("…", "...")
        return plain.encode(encoding, "backslashreplace").decode(encoding)
    return text


def table_width() -> int:
    """The columns of the terminal, at least 32; for a file or another program no line is cut."""
    terminal = sys.stdout is not None and sys.stdout.isatty()
    return max(shutil.get_terminal_size().columns, 32) if terminal else 100_000


def table(
    titles: Sequence[str], rows: Iterable[Mapping[str, str]], right: Collection[str], longest: str, width: int
) -> list[str]:
    """The lines of a table, titles first, none wider than `width`: the column `longest` is cut for that.

    `rows` have a cell for each title; the columns in `right` are aligned to the right.
    """
    from rich.cells import cell_len, set_cell_size

    from ..visible import escaped

    cells = [
        {title: title for title in titles},
        *({title: escaped(row[title]) for title in titles} for row in rows),
    ]
    widths = {title: max(cell_len(row[title]) for row in cells) for title in titles}
    excess = sum(widths.values()) + 3 * (len(titles) - 1) - width
    widths[longest] = max(widths[longest] - max(excess, 0), 1)

    def cell(title: str, text: str) -> str:
        space = widths[title] - cell_len(text)
        if space < 0:
            return set_cell_size(text, widths[title] - 1) + "…"
        return " " * space + text if title in right else text + " " * space

    lines = ["   ".join(cell(title, row[title]) for title in titles).rstrip() for row in cells]
    lines.insert(1, "─" * (sum(widths.values()) + 3 * (len(titles) - 1)))
    return lines


def moment(t: float) -> str:
    """Unix seconds by the clock on the wall."""
    return datetime.fromtimestamp(t).strftime("%Y-%m-%d %H:%M:%S")


STDOUT = "-"
"""For `--html`: standard output."""


def check_html(path: str) -> None:
    """Refuse a path to which `put_page` cannot write a page.

    Raises:
        ConfigError: The one line for the user.
    """
    if path == STDOUT:
        return
    folder, name = os.path.split(os.path.abspath(path))
    is_special = os.path.exists(path) and not os.path.isfile(path)
    if not path.strip() or not name or is_special or folder == "/dev" or folder.startswith("/proc"):
        raise ConfigError(f"--html {path!r}: give the name of a file")
    if not os.path.isdir(folder):
        raise ConfigError(f"--html {path}: there is no folder {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"--html {path}: {folder} cannot be written to")


def put_page(path: str, html: str, of: str) -> str:
    """Write the page; what to print instead of it, or the page for standard output.

    A file is private (0600), and whole or not there. A link with its name is replaced and not followed.
    Does not cover: links above the file, since the folder is the user's choice.

    Args:
        of: What is shown, for the line to print.

    Raises:
        OSError: It cannot be written.
    """
    from ..private_file import write_file
    from ..visible import escaped

    if path == STDOUT:
        return html
    folder, name = os.path.split(os.path.abspath(path))
    write_file(os.path.realpath(folder), name, html)
    return f"page of {escaped(of)} in {escaped(path)}\n"
