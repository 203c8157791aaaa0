"""What only tells people something: an error in it is said, and goes no further.

Does not cover: what decides about the job; an error there ends it in good order (:meth:`.agent.Agent.serve`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger("holdfast.launcher")
_said: set[str] = set()


@contextmanager
def harmless(what: str) -> Iterator[None]:
    """Errors inside are logged, once for each `what`."""
    try:
        yield
    except Exception as error:
        if what not in _said:
            _said.add(what)
            logger.warning(
                "%s failed (%r); the job goes on. Please report this as a bug of Holdfast", what, error
            )
            logger.debug("where:", exc_info=error)
