"""Metrics as loggers have written them: read back from their files."""

from __future__ import annotations

import csv
import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

Values = dict[str, list[tuple[int, float]]]
"""Name → (step, value), in the order of writing."""

_BLOCK = 32768


def of_csv(folder: Path) -> Values:
    (file,) = folder.rglob("metrics.csv")
    found: Values = defaultdict(list)
    with file.open() as lines:
        for row in csv.DictReader(lines):
            for name, value in row.items():
                if name != "step" and value:
                    found[name].append((int(row["step"]), float(value)))
    return found


def of_tensorboard(folder: Path) -> Values:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (file,) = folder.rglob("events.out.tfevents.*")
    events = EventAccumulator(str(file)).Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }


def of_wandb(folder: Path) -> Values:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(folder))  # importing it makes folders, and keeps them
        from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]
    (file,) = folder.rglob("run-*.wandb")
    found: Values = defaultdict(list)
    for data in _records(file.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        items = {
            item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
        }
        for name, value in items.items():
            if isinstance(value, (int, float)):
                found[name].append((int(items.get("trainer/global_step", -1)), float(value)))
    return found


def _records(data: bytes) -> Iterator[bytes]:
    """The records of W&B's file: a log as LevelDB has it, after 7 bytes of its own."""
    at, parts = 7, b""
    while at + 7 <= len(data):
        if _BLOCK - at % _BLOCK < 7:  # what is left of a block is too short for a header
            at += _BLOCK - at % _BLOCK
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""
