"""The place of a stack frame: a collective, the data loader, a lock, the program's own code. Pure.

A file is recognised by the end of its path; all sources of stacks give whole paths. The table was made from
stacks of torch 2.13 and Python 3.11.
Does not cover: native frames. A C function has no Python frame; the kernel shows what it waits for (`signatures`).
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache

from ..evidence import Frame


class Place(Enum):
    """The part of a program that a call belongs to."""

    COLLECTIVE, P2P, BACKWARD, RENDEZVOUS, STORE, TEARDOWN, GPU, LOADER, CHECKPOINT = range(9)
    LOCK, CHILD, NETWORK, LOGGING, IMPORT, EXIT, EVENTS, LIBRARY, OWN = range(9, 18)


_C10D = r"torch/distributed/distributed_c10d\.py"
_PLACES = tuple(
    (place, re.compile(rf"(?:^|/)(?:{file})"), re.compile(rf"^(?:{function})$"))
    for place, file, function in (
        (Place.EXIT, r"threading\.py$", r"_shutdown"),
        (Place.EXIT, r"multiprocessing/util\.py$", r"_exit_function|_run_finalizers"),
        (Place.EXIT, r"concurrent/futures/(thread|process)\.py$", r"_python_exit"),
        (Place.EXIT, r"atexit\.py$|weakref\.py$", r"_run_exitfuncs|_exitfunc"),
        (Place.TEARDOWN, _C10D, r"destroy_process_group|_shutdown_backend|_abort_process_group"),
        (
            Place.RENDEZVOUS,
            _C10D,
            r"init_process_group|_new_process_group_helper|_?new_group\w*|_?store_based_barrier|split_group",
        ),
        (Place.STORE, r"torch/distributed/rendezvous\.py$", r"_create_c10d_store"),
        (Place.RENDEZVOUS, r"torch/distributed/rendezvous\.py$|torch/distributed/elastic/rendezvous/", r".*"),
        (Place.LIBRARY, r"torch/distributed/(c10d_logger|logging_handlers)\.py$", r".*"),
        (
            Place.LIBRARY,
            _C10D,
            r"get_\w+|is_\w+|_get_\w+|_rank_not_in_group|_check_\w+|_warn_\w+|_object_to_tensor",
        ),
        (Place.P2P, _C10D, r"i?send|i?recv|batch_isend_irecv|(send|recv)_object_list"),
        (Place.COLLECTIVE, _C10D, r"[a-z_]\w*"),
        (Place.COLLECTIVE, r"torch/distributed/(nn/|algorithms/|_functional_collectives\.py)", r".*"),
        (
            Place.COLLECTIVE,
            r"torch/distributed/utils\.py$",
            r"_verify_param_shape\w*|_sync_\w+|_broadcast\w*",
        ),
        (Place.COLLECTIVE, r"torch/nn/parallel/distributed\.py$", r"_sync\w*|\w*broadcast\w*|_verify\w*"),
        (Place.COLLECTIVE, r"torch/nn/modules/_functions\.py$", r"forward|backward"),
        (Place.BACKWARD, r"torch/autograd/graph\.py$", r"_engine_run_backward"),
        (Place.BACKWARD, r"torch/autograd/__init__\.py$", r"backward|grad"),
        (Place.GPU, r"torch/cuda/(__init__|streams|graphs)\.py$", r"synchronize|wait|wait_event|wait_stream"),
        (Place.LOADER, r"torch/utils/data/|torchdata/|webdataset/|streaming/base/|nvidia/dali/", r".*"),
        (Place.CHECKPOINT, r"torch/serialization\.py$|torch/distributed/checkpoint/|safetensors/", r".*"),
        (Place.CHECKPOINT, r"holdfast/checkpoints/|lightning/fabric/plugins/io/", r".*"),
        (
            Place.CHILD,
            r"subprocess\.py$|multiprocessing/(popen_\w+|process|pool|connection|managers)\.py$",
            r".*",
        ),
        (Place.NETWORK, r"(socket|ssl|socketserver|ftplib|smtplib|imaplib)\.py$", r".*"),
        (Place.NETWORK, r"(http|urllib|urllib3|requests|httpx|httpcore|aiohttp|websockets?|xmlrpc)/", r".*"),
        (
            Place.NETWORK,
            r"(botocore|boto3|s3transfer|s3fs|gcsfs|fsspec|grpc|redis|paramiko|wandb|mlflow)/",
            r".*",
        ),
        (
            Place.NETWORK,
            r"(huggingface_hub|google/(cloud|api_core|auth)|azure|pymongo|psycopg2?|kafka)/",
            r".*",
        ),
        (
            Place.LOCK,
            r"threading\.py$",
            r"wait|wait_for|acquire|join|_wait_for_tstate_lock|__enter__|_acquire_restore",
        ),
        (Place.LOCK, r"queue\.py$|multiprocessing/(synchronize|queues)\.py$", r".*"),
        (
            Place.LOCK,
            r"concurrent/futures/|torch/utils/file_baton\.py$|filelock/|fasteners/|portalocker/|asyncio/(locks|queues)\.py$",
            r".*",
        ),
        (Place.LOGGING, r"logging/(__init__|handlers)\.py$|tensorboard\w*/|torch/utils/tensorboard/", r".*"),
        (Place.EVENTS, r"asyncio/|uvloop/|trio/|anyio/", r".*"),
        (Place.IMPORT, r"<frozen importlib|importlib/__init__\.py$|importlib/_bootstrap\w*\.py$", r".*"),
    )
)
_INSTALLED = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages|lib(?:64)?/python\d[\d.]*|python\d+\.zip)/"
    r"|/src/holdfast/|/torch/(?:distributed|utils|nn|autograd|optim|cuda|_\w+)/|/torch/serialization\.py$"
)
"""Also torch and Holdfast where they run from their sources."""


def function_of(frame: Frame) -> str:
    """The function's own name: some sources give `Dataset.fetch.<locals>.wrapper`, others `wrapper`."""
    return frame.function.rsplit(".", 1)[-1]


def is_own(frame: Frame) -> bool:
    """Whether a call is the program's own code."""
    return place_of(frame) is Place.OWN


def place_of(frame: Frame) -> Place:
    """The part that it belongs to, the first in the table that fits."""
    return Place.LIBRARY if frame.native else _place(frame.file.replace("\\", "/"), function_of(frame))


@lru_cache(maxsize=8192)
def _place(file: str, function: str) -> Place:
    if file and not file.startswith("<frozen") and not _INSTALLED.search(file):
        return Place.OWN  # neither Python's nor an installed package's
    if function == "<module>" and not file.startswith("<frozen"):
        return Place.LIBRARY  # torch.distributed while it is imported is no collective
    for place, files, functions in _PLACES:
        if files.search(file) and functions.match(function):
            return place
    return Place.LIBRARY
