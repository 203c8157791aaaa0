"""How a node gets to the rendezvous store, and what it says while it tries.

What always holds: a signal is heard while the store's host is not there yet; nobody waits in silence for longer than
`SAY_TRYING_AFTER`. Does not cover: a name that does not resolve is not refused, as it may do so later.
"""

from __future__ import annotations

import logging
import threading

from torch.distributed import Store
from torch.distributed.elastic.rendezvous import RendezvousError, RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import DEFAULT_PORT, create_backend
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from .job import JobLost
from .reachable import Endpoint
from .store_call import ask

logger = logging.getLogger("holdfast.launcher")
SAY_TRYING_AFTER = 2.0
CHECK = "check that node 0 is up, the address and the port"


def endpoint_of(parameters: RendezvousParameters) -> Endpoint:
    """Where the store is, as the nodes are told."""
    return Endpoint(*parse_rendezvous_endpoint(parameters.endpoint, default_port=DEFAULT_PORT))


def meet(parameters: RendezvousParameters, node: str) -> Store:
    """A connection to the rendezvous store, which this process hosts from now on where it is to. Raises JobLost."""
    text = "node %s tries to reach the rendezvous store at %s (%s)"
    timer = threading.Timer(SAY_TRYING_AFTER, logger.warning, (text, node, endpoint_of(parameters), CHECK))
    timer.daemon = True
    timer.start()
    try:
        # By `ask`, so that a signal is heard; torch has its own time limit.
        return ask(lambda: create_backend(parameters)[1], lambda now: None)
    except RendezvousError as error:
        raise JobLost(f"the rendezvous store at {parameters.endpoint} cannot be reached: {CHECK}") from error
    finally:
        timer.cancel()
