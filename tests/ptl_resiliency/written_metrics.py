"""Metrics as loggers have written them: read back from their files."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

Values = dict[str, list[tuple[int, float]]]
"""Name → (step, value), in the order of writing."""


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
