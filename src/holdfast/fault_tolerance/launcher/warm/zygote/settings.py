"""Settings of the whole process that a module may change while it is imported, by name.

In a rank such a change happens when the script imports the module, after its own first lines; here it would have
happened before them. Seeds, too: every rank that starts from here draws new ones.
Does not cover: settings that make no difference to a script before it asks for them (warning filters, `sys.path`).
"""

from __future__ import annotations

import _locale
import os
import resource
import signal
import sys
from collections.abc import Callable

WORDS = 624
"""Numbers that a Mersenne twister draws from its state before it makes another one of it: so that a few drawn at import
are not taken for a seed, but hundreds are."""
LIMITS = [value for name, value in sorted(vars(resource).items()) if name.startswith("RLIMIT_")]


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _torch_seed() -> object:
    torch = sys.modules.get("torch")
    generator = getattr(torch, "default_generator", None)
    return generator.initial_seed() if generator is not None else None


def _numpy_seed() -> object:
    numpy = sys.modules.get("numpy.random")
    if numpy is None:
        return None
    if numpy.get_state()[2] == WORDS:
        numpy.random_sample()
    return numpy.get_state()[1].tobytes()


def _random_seed() -> object:
    random = sys.modules.get("random")
    if random is None:
        return None
    if random.getstate()[1][WORDS] == WORDS:
        random.random()
    return random.getstate()[1][:WORDS]


def _start_method() -> bool:
    """Whether one was chosen; asking multiprocessing itself would choose."""
    context = getattr(sys.modules.get("multiprocessing.context"), "_default_context", None)
    return getattr(context, "_actual_context", None) is not None


def _handlers() -> object:
    return [signal.getsignal(number) for number in signal.valid_signals()]


def _hooks() -> object:
    threads = sys.modules.get("threading")
    others = threads is not None and threads.excepthook is not threads.__excepthook__
    return [id(sys.excepthook), id(sys.displayhook), others]


def _shared_memory() -> list[bytes]:
    """Writable, and one for all forks: of a semaphore, for one."""
    with open("/proc/self/maps", "rb") as file:
        return [line for line in file if line.split(None, 2)[1] in (b"rw-s", b"rwxs")]


LOOKS: dict[str, Callable[[], object]] = {
    "it changes the working directory": os.getcwd,
    "it changes the umask": _umask,
    "it changes a resource limit": lambda: [resource.getrlimit(limit) for limit in LIMITS],
    "it changes the locale": lambda: _locale.setlocale(_locale.LC_ALL, None),
    "it replaces sys.stdout or sys.stderr": lambda: (id(sys.stdout), id(sys.stderr)),
    "it replaces sys.excepthook or its like": _hooks,
    "it handles signals": _handlers,
    "it shares memory with its forks": _shared_memory,
    "it chooses how multiprocessing starts processes": _start_method,
    "it seeds torch": _torch_seed,
    "it seeds numpy": _numpy_seed,
    "it seeds random": _random_seed,
}


class Settings:
    """As they were at the last look."""

    def __init__(self) -> None:
        self._seen = {what: look() for what, look in LOOKS.items()}

    def changed(self) -> str:
        """What has changed since, in words; '' for nothing. That torch has only now been imported is no change."""
        for what, look in LOOKS.items():
            before, now = self._seen[what], look()
            self._seen[what] = now
            if now != before and before is not None:
                return what
        return ""
