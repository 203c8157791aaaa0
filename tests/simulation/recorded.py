"""A simulated job whose launchers record what their controllers decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.fault_tolerance.launcher.recorder import Recorder
from holdfast.fault_tolerance.launcher.replayer import Line, replay
from holdfast.journal.event import decode, encode

from .scenarios import scenario
from .world import Scenario, World


class RecordedWorld(World):
    """A world with the lines of each launcher's journal."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.journals: dict[str, list[bytes]] = {}
        self._recorders: dict[str, Recorder] = {}
        self.inputs = 0

    def controller(self, name: str) -> Any:
        """A recorder in front of the controller."""
        if name not in self._recorders:
            lines = self.journals.setdefault(name, [])
            self._recorders[name] = Recorder(
                lambda kind, **values: lines.append(
                    encode(kind, values, t=1.8e9 + self.now, mono=self.now, node=name)
                )
            )
        self.inputs += 1
        return self._recorders[name]


def recorded(seed: int) -> RecordedWorld:
    """The simulated job of this seed, at its end."""
    world = RecordedWorld(scenario(seed))
    world.run()
    return world


def replayed(lines: Sequence[bytes]) -> list[Line]:
    """A replay of one launcher's journal."""
    return list(replay(event for line in lines if (event := decode(line))))
