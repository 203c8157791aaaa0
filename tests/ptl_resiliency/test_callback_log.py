"""Where a callback's lines go in a program that has set up no logging, and in one that has."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr

import pytest

from holdfast.callbacks.arguments import INSTEAD_OF_ROOT, named

NAMES = [None, "root", "holdfast_test.callback"]


@contextmanager
def bare() -> Iterator[Callable[[], str]]:
    """No logging is set up, as outside of pytest, which has its handlers at the root in each phase of a test. Gives
    what is on stderr."""
    loggers = [logging.getLogger(name) for name in (None, INSTEAD_OF_ROOT, "holdfast_test.callback")]
    before = [(each.handlers, each.level) for each in loggers]
    shown = io.StringIO()
    try:
        for each in loggers:
            each.handlers = []
            each.setLevel(logging.NOTSET)
        loggers[0].setLevel(logging.WARNING)
        with redirect_stderr(shown):
            yield shown.getvalue
    finally:
        for each, (handlers, level) in zip(loggers, before, strict=True):
            each.handlers = handlers
            each.setLevel(level)


@pytest.mark.parametrize("name", NAMES)
def test_lines_are_shown_where_no_logging_is_set_up(name: str | None) -> None:
    with bare() as shown:
        for _ in range(2):  # callbacks ask at each start
            log = named(name)
        log.info("for your information")
        log.debug("in detail")
        assert shown() == "for your information\n"


@pytest.mark.parametrize("name", NAMES)
def test_the_root_logger_stays_the_programs(name: str | None) -> None:
    with bare() as shown:
        root = logging.getLogger()
        log = named(name)
        assert root.handlers == [] and root.level == logging.WARNING
        logging.getLogger("another.package").info("not shown")
        logging.basicConfig(level=logging.INFO, format="program: %(message)s", stream=sys.stderr)
        log.info("for your information")
        named(name).info("again")
        assert shown() == "program: for your information\nprogram: again\n"


@pytest.mark.parametrize("name", NAMES)
def test_a_program_with_handlers_decides(name: str | None) -> None:
    with bare() as shown:
        logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
        named(name).info("not wanted")
        named(name).warning("wanted")
        assert shown() == "wanted\n"
