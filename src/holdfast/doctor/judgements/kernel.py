"""What the kernel, and whatever stands between it and us, lets a launcher do. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..finding import Finding, note, ok, problem
from ..quantity import listed

NEEDED = {
    "pidfd": "process handles (pidfd): a signal could reach a stranger",
    "subreaper": "PR_SET_CHILD_SUBREAPER: what a dead rank leaves running is not found",
    "pdeathsig": "PR_SET_PDEATHSIG: ranks outlive a launcher that is killed",
    "proc": "/proc: hung ranks and what dead ones leave running are not found",
    "flock": "flock on shared memory: dead jobs are not told from living ones",
}
SCOPES = {
    1: "only a process's ancestors",
    2: "only processes with CAP_SYS_PTRACE",
    3: "nobody",
}


@dataclass(frozen=True, slots=True)
class Ptrace:
    """Whether a process may look into a sibling of the same user, as a launcher's helper looks into a rank."""

    error: str
    """Why not; empty when it may."""
    scope: int | None
    """/proc/sys/kernel/yama/ptrace_scope; None without Yama."""
    capable: bool
    """Whether this process has CAP_SYS_PTRACE."""


def features(errors: Mapping[str, str]) -> Finding:
    """What was tried, and why it failed; empty where it did not."""
    check = "kernel"
    missing = [f"{NEEDED[name]} ({error})" for name, error in errors.items() if error]
    if missing:
        return problem(
            check,
            f"missing: {listed(missing)}",
            "use Linux 5.4 or newer; in a sandbox (gVisor, a seccomp profile) allow these calls",
        )
    return ok(check, "pidfds, subreaper, parent-death signals and locks work")


def ptrace(found: Ptrace) -> Finding:
    """Whether native stacks of ranks can be taken."""
    check = "ptrace"
    if not found.error:
        return ok(check, "stacks of ranks can be taken from outside (py-spy, gdb)")
    advice = "docker run --cap-add SYS_PTRACE; a pod's securityContext.capabilities.add: [SYS_PTRACE]"
    reason = found.error
    if found.scope and not found.capable:
        reason = f"kernel.yama.ptrace_scope is {found.scope}: {SCOPES.get(found.scope, 'nobody')} may"
        if found.scope != 3:
            advice = f"sysctl kernel.yama.ptrace_scope=0, or {advice}"
        else:
            advice = "it stays so until the next boot; set kernel.yama.ptrace_scope to 0 in /etc/sysctl.d"
    return note(
        check,
        f"native stacks of ranks cannot be taken ({reason}); training and restarts do not need them",
        advice,
    )
