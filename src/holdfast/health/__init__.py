"""Checks of a node: GPUs, network cards, storage, the machine, and a command of the user's own. Each gives findings.

`checks` has which of them apply and when each is done, `probe` the process that may hang, `programs` how one is ended.
Does not cover: what follows from a finding, see `fault_tolerance.launcher.node_health`.
"""

from __future__ import annotations

from dataclasses import dataclass

GOOD, ABSENT, WARNING, SICK = "good", "does not apply", "warning", "sick"

CHECKS = {
    "GPUs": (
        (
            "fewer than at the start; a GPU that is lost or needs a reset; a driver that cannot be opened in "
            "60 s; new uncorrectable memory errors; a row of memory that could not be remapped; an NVLink "
            "that was up and is down; an Xid that no program causes (48, 64, 74, 79, 95, 119, 120, 140)"
        ),
        (
            "uncorrectable memory errors from before the job; rows or pages that wait for a reset; fewer "
            "NVLinks than others; clocks that heat or the power brake slows; Xids of before the job; a late "
            "answer"
        ),
    ),
    "network cards": (
        (
            "a port that was `ACTIVE` at the start and is not; with `enable_nic_monitor` a link that went "
            "down since the last check"
        ),
        "a speed below that of others of its kind; a file that cannot be read",
    ),
    "storage": (
        (
            "a path of `storage_healthcheck_path` that does not exist, cannot be read or does not answer; a "
            "folder of `--ft-health-write-path` that cannot be written; with "
            "`enable_dist_storage_healthcheck` a mount of NFS or Lustre whose server does not answer, and "
            "Lustre's own report"
        ),
        "a mount that may not be read",
    ),
    "command": (
        (
            "`--ft-health-command` ends with another exit code than 0, or not in time. Its last line of "
            "output is the reason"
        ),
        "",
    ),
    "machine": (
        "",
        "less than 2 GiB of memory, 64 MiB of `/dev/shm` or 100 MiB for the run directory; a late answer",
    ),
    "clock": (
        "",
        "another node's clock is more than 2 s ahead of this one",
    ),
}
"""Every check, what makes a node sick, and what is a warning, in Markdown."""


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
