"""`SimulatedFaultParams`: the documented way to ask a Lightning callback or a Megatron-style loop for one fault.

Pure. What always holds: params that exist can be armed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.testing.fault import Fault, FaultSpecError, nearest


@dataclass
class SimulatedFaultParams:
    """One fault after a delay, in every restart cycle.

    fault_type: `rank_killed` (SIGKILL), `rank_hung` (SIGSTOP), `random` (one of these two) or any kind of
        `holdfast.testing` with its default options.
    base_delay: seconds from `inject(params)`. rand_delay: up to so many seconds more: base + U(0, 1) · rand.
    rank_to_fail: a global rank; None chooses one, the same on every rank, with no communication (CPU is enough).

    Raises FaultSpecError, a ValueError: "Failed to parse simulated fault params, …".
    """

    fault_type: str
    base_delay: float
    rand_delay: float = 0.0
    rank_to_fail: int | None = None

    def __post_init__(self) -> None:
        self.to_fault()

    def to_fault(self) -> Fault:
        """The same as a `Fault`."""
        if self.rank_to_fail is not None and not isinstance(self.rank_to_fail, int):
            raise FaultSpecError(f"{_FAILED}, rank_to_fail is a rank or None, not {self.rank_to_fail!r}")
        try:
            return Fault(
                self.fault_type,
                after=self.base_delay,
                rand=self.rand_delay,
                rank="random" if self.rank_to_fail is None else self.rank_to_fail,
                cycle="each",
            )
        except FaultSpecError as error:
            names = (
                "; documented names: rank_killed, rank_hung, random" if "unknown fault" in str(error) else ""
            )
            raise FaultSpecError(f"{_FAILED}, {error}{names}") from None

    @classmethod
    def parse(cls, params: SimulatedFaultParams | Mapping[str, Any]) -> SimulatedFaultParams:
        """From a dict (or any mapping with these keys, OmegaConf's too); an instance is returned as it is."""
        if isinstance(params, cls):
            return params
        if not isinstance(params, Mapping):
            raise FaultSpecError(f"{_FAILED}, a mapping is needed, not {params!r}")
        fields = [field.name for field in dataclasses.fields(cls)]
        for key in params:
            if key not in fields:
                hint = nearest(str(key), fields)
                raise FaultSpecError(f"{_FAILED}, unknown key {key!r}{hint}; known: {', '.join(fields)}")
        for key in ("fault_type", "base_delay"):
            if key not in params:
                raise FaultSpecError(f"{_FAILED}, {key} is missing")
        return cls(**{str(key): params[key] for key in params})


_FAILED = "Failed to parse simulated fault params"
