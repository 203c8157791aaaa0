"""The account of an attempt from the journals of a run directory.

What always holds: it takes `ANSWER` seconds for each of two looks at most, and never raises; journals that are there
and cannot be read are told of (`Account.unread`), since they may tell of ranks.

Does not cover: what journals say (`outcome`).
"""

from __future__ import annotations

from contextlib import suppress

from ..in_time import TooLate, within
from ..journal.reader import JournalUnreadable, journal_files, read_run
from .outcome import Account, account_of

ANSWER = 20.0
"""Seconds for reading an attempt's journal."""


def read_account(run_dir: str, since: float) -> Account:
    """What is known of the attempt that began at `since`, unix seconds."""
    try:
        return account_of(within(ANSWER, lambda: read_run(run_dir)), since)
    except TooLate:
        return Account(unread=True)
    except JournalUnreadable:
        # Without a journal nothing was started; one that cannot be read may tell of ranks.
        with suppress(JournalUnreadable, TooLate):
            return Account(unread=bool(within(ANSWER, lambda: journal_files(run_dir))))
        return Account()
