"""What the command line says about the ranks, known before torch is imported: so that their zygote starts at once.

Does not cover: whether torchrun's options are right; torch's parser, which comes later, says that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..warm.plan import Request
from .option_spellings import CommandLine
from .torch_options import environment_switch


def switches(line: CommandLine, environ: Mapping[str, str]) -> dict[str, bool]:
    """torchrun's switches that say what the script is."""
    return {
        name: f"--{name.replace('_', '-')}" in line.torch or environment_switch(name, environ)
        for name in ("module", "no_python", "run_path")
    }


def request(line: CommandLine, launcher: Mapping[str, Any], environ: Mapping[str, str]) -> Request:
    """What the ranks will be, as far as it matters for starting them warm."""

    def value(name: str) -> str | None:
        given = [word.partition("=")[2] for word in line.torch if word.startswith(f"--{name}=")]
        return given[-1] if given else environ.get(f"PET_{name.replace('-', '_').upper()}")

    signals = value("signals-to-handle")
    return Request(
        launcher["warm_start"],
        line.script or "",
        tuple(line.script_args),
        **switches(line, environ),
        numa=value("numa-binding") is not None,
        several=(value("nproc-per-node") or "1") != "1",
        preload=launcher["preload"],
        signals=tuple(name.strip() for name in signals.split(",")) if signals else (),
    )
