"""What the NVIDIA driver says of this node's GPUs: faults, memory errors, throttling. Sentences, one for each fact.

Always holds: on a machine without that driver there is nothing to say, and nothing is started. The driver is asked by
its own program, in a process of its own: a driver that hangs holds whoever asked it, and must not hold us.
Does not cover: GPUs of other makers; whether a GPU is slow (straggler detection).
"""

from __future__ import annotations

from ... import nvidia
from .program import answer, found

FIELDS = (
    "index",
    "name",
    "ecc.errors.uncorrected.volatile.total",
    "remapped_rows.failure",
    "clocks_throttle_reasons.hw_thermal_slowdown",
    "clocks_throttle_reasons.hw_power_brake_slowdown",
    "clocks_throttle_reasons.sw_thermal_slowdown",
    "temperature.gpu",
)
"""Of `nvidia-smi --query-gpu`; newer drivers take these names too."""
_THROTTLED = {
    4: "it is too hot (hardware)",
    5: "the power supply asks it to (power brake)",
    6: "it is too hot (driver)",
}


def facts(until: float) -> tuple[str, ...]:
    """What stands out, by `until` (monotonic seconds); a driver that does not answer stands out too."""
    program = found("nvidia-smi") if nvidia.find_driver() else ""
    if not program:
        return ()
    told = answer([program, f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"], until)
    if told.why_not:
        return (f"the NVIDIA driver did not tell of its GPUs: {told.why_not.splitlines()[0]}",)
    return sentences(told.out)


def sentences(table: str) -> tuple[str, ...]:
    """From the program's lines, one for each GPU. Pure."""
    said = []
    for line in table.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != len(FIELDS):
            continue
        gpu = f"GPU {fields[0]} ({fields[1]})"
        if fields[2].isdigit() and int(fields[2]):
            said.append(f"{gpu} has had {fields[2]} uncorrectable memory errors since its driver was loaded")
        if fields[3].lower() in ("yes", "1"):
            said.append(f"{gpu} could not remap a broken row of its memory: it is to be replaced")
        slow = [why for at, why in _THROTTLED.items() if fields[at] == "Active"]
        said += [f"{gpu} runs slower because {why}; it has {fields[7]} degrees" for why in slow]
    return tuple(said)
