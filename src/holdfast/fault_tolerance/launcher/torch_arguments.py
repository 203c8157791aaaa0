"""torch's arguments, as the launcher settles them before it uses torch's agent: what torch would warn about, or do in a
way that leaves something behind.

Does not cover: whether the user's values are right; :mod:`.command_line` has checked them.
"""

from __future__ import annotations

import os
import socket
from argparse import Namespace

DEFAULT_PORT = 29500  # torchrun's default for --master-port


def is_one_node(given: Namespace) -> bool:
    """One node, and no address at which others could come to join."""
    nnodes = str(getattr(given, "nnodes", "1"))
    return getattr(given, "standalone", False) or (
        nnodes.rpartition(":")[2] == "1" and not getattr(given, "rdzv_endpoint", "")
    )


def node_name(given: Namespace) -> str:
    """In journals and messages. Several launchers of one job may share a machine; a pid may come back
    (:func:`.rendezvous.register`)."""
    host = socket.gethostname()
    return host if is_one_node(given) else f"{host}:{os.getpid()}"


def settle(given: Namespace, run_dir: str, board_dir: str) -> int:
    """Change the arguments in place, and the environment that torch looks into; returns the node rank or -1.

    `board_dir` is removed with the launcher; `run_dir` stays.
    """
    if given.log_dir is None:
        # torch would leave a folder in the shared temporary directory behind.
        streams = given.redirects != "0" or given.tee != "0"
        given.log_dir = os.path.join(run_dir if streams else board_dir, "logs")
    if given.nproc_per_node != "1":
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does, without its warning
    if not is_one_node(given) and given.rdzv_backend == "static":
        # torch's static rendezvous never tells a node that another failed: the same addresses, by c10d.
        port = given.master_port or DEFAULT_PORT
        given.rdzv_endpoint = given.rdzv_endpoint or f"{given.master_addr}:{port}"
        is_host = f"is_host={int(given.node_rank == 0)}"
        given.rdzv_conf = f"{given.rdzv_conf},{is_host}" if given.rdzv_conf else is_host
    # With c10d, too, it orders the nodes; torch would only warn that it does not.
    node_rank, given.node_rank = int(given.node_rank) if given.has_node_rank else -1, 0
    given.rdzv_backend = "c10d"
    given.rdzv_endpoint = given.rdzv_endpoint or "localhost:0"
    return node_rank
