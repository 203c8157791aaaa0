"""Work that only informs people: an error in it is logged and recorded, and the job continues.

Does not cover: what decides about the job; an error there ends it in good order (:mod:`.driver`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger("holdfast.launcher")
_logged: set[tuple[str, str]] = set()


@contextmanager
def best_effort(what: str, record: Callable[..., object]) -> Iterator[None]:
    """Errors inside go to the journal by `record`, and to the log once for each `what` and error."""
    try:
        yield
    except Exception as error:
        record("launcher_error", what=what, error=repr(error))
        if (what, repr(error)) not in _logged and len(_logged) < 100:
            _logged.add((what, repr(error)))
            text = "%s failed (%r); the job goes on. Please report this as a bug of Holdfast"
            logger.warning(text, what, error)
            logger.debug("where:", exc_info=error)
