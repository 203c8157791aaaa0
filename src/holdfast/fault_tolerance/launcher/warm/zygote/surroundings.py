"""What makes an interpreter unfit to be a zygote from its start: who has it under observation, and what runs in it.

Does not cover: what a site does at the start without leaving a thread or a trace function.
"""

from __future__ import annotations

import importlib.util
import site
import sys

from . import process


def unfit() -> str:
    """Why no rank should be forked from this interpreter ('' for no reason)."""
    if sys.gettrace() or sys.getprofile() or _monitored():
        return "a debugger, a profiler or a coverage tool observes the ranks"
    if site.ENABLE_USER_SITE and importlib.util.find_spec("usercustomize"):
        return "the user has a module usercustomize, which runs later"
    if process.more_than_one_thread():
        return "what the site starts in every Python has a thread"
    return ""


def _monitored() -> bool:
    monitoring = getattr(sys, "monitoring", None)  # since Python 3.12
    return monitoring is not None and any(monitoring.get_tool(tool) for tool in range(6))
