"""Data that does not come: the loader, its workers, the file that they read."""

from __future__ import annotations

from benchmarks.faults.kind import COUNTED, Kind

_READS = ("step", "validation")

DATA = (
    Kind(
        "worker_killed",
        "A worker of the data loader is killed with -9.",
        "SIGKILL to itself in __getitem__; the loader raises in the rank",
        "exception",
        _READS,
        hangs=False,
        also="data_loading",
        why="the loader's exception ended the rank, and says itself that its worker was killed",
        workers=1,
    ),
    Kind(
        "worker_stopped",
        "A worker of the data loader is stopped.",
        "SIGSTOP to itself in __getitem__",
        "data_loading",
        _READS,
        workers=1,
        variants=(("step", COUNTED),),
    ),
    Kind(
        "worker_sleeps",
        "A worker of the data loader does not come back from __getitem__.",
        "time.sleep there",
        "data_loading",
        _READS,
        workers=1,
    ),
    Kind(
        "dataset_file",
        "A file of the dataset does not let itself be read, as on a filesystem that is gone.",
        "a FIFO without a writer in its place, read by the rank itself",
        "data_loading",
        _READS,
    ),
    Kind(
        "dataset_sleeps",
        "The dataset sleeps in the rank itself.",
        "time.sleep in __getitem__, no workers",
        "data_loading",
        _READS,
        also="user_code",
        why="the loader calls the program's own code, which sleeps",
    ),
)
