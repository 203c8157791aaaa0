"""Checks of a node: GPUs, network cards, storage, the machine, and a command of the user's own. Each gives findings.

`checks` has which of them apply and when each is done, `probe` the process that may hang, `programs` how one is ended.
Does not cover: what follows from a finding, see `fault_tolerance.launcher.node_health`.
"""

from __future__ import annotations

from dataclasses import dataclass

GOOD, ABSENT, WARNING, SICK = "good", "does not apply", "warning", "sick"


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence about one part of the node."""

    check: str
    """The name of the check: `GPUs`."""
    verdict: str
    """`GOOD`; `ABSENT`: there is nothing to check here, or no way to; `WARNING`: worth knowing, never a reason to leave
    the node out; `SICK`: a rank may not train here."""
    text: str
    """The facts, without a full stop."""
    is_hardware: bool = False
    """Whether no program causes this: the node is suspect."""
    what: str = ""
    """Equal for the same trouble, whatever its numbers are now; empty: the text."""

    @property
    def key(self) -> tuple[str, str]:
        """Findings with the same key are reported once."""
        return self.check, self.what or self.text

    @property
    def line(self) -> str:
        """With the name of its check."""
        return f"{self.check}: {self.text}"
