"""The checks: each is a function from facts to a finding, and `run_checks` runs all of them.

The facts are functions given as default arguments, so that a test gives values in their place. Always holds: all
checks together take at most `DEADLINE` seconds (`--trial` adds the time of its imports).
Does not cover: limits that change while a job runs; whether other nodes reach this one. The thread of a check that
never returns is a daemon and is left behind.
"""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address

from ..fault_tolerance.launcher.warm.gpu_evidence import is_tested
from ..fault_tolerance.launcher.warm.plan import Request, why_cold
from ..fault_tolerance.processes import cgroups, proc
from ..fault_tolerance.processes.cgroups import Limit
from ..health import GOOD, SICK, WARNING
from ..health.cards import LINK_DOWN
from ..health.checks import Checks, Wanted
from ..in_time import TooLate, UnderWay, answers
from ..lazy import NEWEST_TORCH, OLDEST_TORCH, release
from . import facts
from .facts import Folder, Interpreter, Name
from .import_trial import COLD, check_trial
from .table import GIB, MIB, OK, PROBLEM, Finding, count, listed, note, ok, problem, size

DEADLINE = 2.5
"""Seconds for all checks together."""
OLDEST_PYTHON = (3, 10)
USUAL_SHM = 64 * MIB
"""The size of /dev/shm in a container by default. Source: docker run, --shm-size."""
LITTLE_SPACE = 100 * MIB
# Measured of a bare rank (torch 2.13 on CPU, gloo, one step): 238 MB, 4 threads, 10 descriptors. Data loaders, NCCL
# and the model need more.
RANK_MEMORY, RANK_MEMORY_GOOD = 256 * MIB, GIB
RANK_THREADS, RANK_THREADS_GOOD, LAUNCHER_THREADS = 8, 64, 24
RANK_FILES, LAUNCHER_FILES, FILES_GOOD = 16, 64, 1024
NEEDED = {
    "pidfd": "process handles (pidfd): a signal could reach another process",
    "subreaper": "PR_SET_CHILD_SUBREAPER: processes that a dead rank leaves behind are not found",
    "pdeathsig": "PR_SET_PDEATHSIG: ranks outlive a launcher that is killed",
    "proc": "/proc: hung ranks and processes of dead ranks are not found",
    "flock": "flock on shared memory: dead jobs cannot be distinguished from running ones",
}
PTRACE_SCOPES = {1: "only ancestors of a process", 2: "only processes with CAP_SYS_PTRACE", 3: "no process"}
SEVERAL_NODES = (
    "For several nodes give --rdzv-endpoint an address that they reach, and each node --local-addr"
)


def run_checks(
    nproc: int = 1,
    script: Request | None = None,
    run_dir: str | None = None,
    *,
    trial: bool = False,
    wanted: Wanted | None = None,
) -> list[Finding]:
    """The findings of all checks, in the order of the report.

    Args:
        run_dir: Of the job; None: the default folder.
        wanted: Checks of the node's health, as a launcher makes them; None: those that need no settings.
    """
    wanted = wanted or Wanted(proc.nvidia_driver(), link_down=LINK_DOWN)
    found = within_deadline(
        {
            "python": check_python,
            "NVIDIA driver": check_driver,
            "import names": check_import_names,
            "shared memory": lambda: check_shm(nproc),
            "memory": lambda: check_memory(nproc),
            "processes": lambda: check_processes(nproc),
            "open files": lambda: check_open_files(nproc),
            "kernel": check_kernel,
            "loopback port": check_loopback,
            "interfaces": check_interfaces,
            "localhost": check_localhost,
            "host name": check_host_name,
            "dead jobs' boards": check_boards,
            "orphaned ranks": check_orphans,
            "run directory": lambda: check_run_directory(run_dir),
            "health": lambda: check_health(wanted),
        }
    )
    request = script or Request("auto", "train.py", several=nproc > 1)
    cold = why_cold(request, os.environ, is_tested=is_tested(proc.nvidia_driver()))
    if trial and script:
        found.append(check_trial(script, run_dir, cold))
    return [*found, check_warm_start(found, cold)]


def within_deadline(
    checks: Mapping[str, Callable[[], Finding | list[Finding]]], seconds: float = DEADLINE
) -> list[Finding]:
    """Run checks side by side; one that fails, or blocks for longer than `seconds`, becomes a note."""
    found: list[Finding] = []
    for name, answer in answers({name: _start(check) for name, check in checks.items()}, seconds):
        if isinstance(answer, TooLate):
            answer = note(name, f"not checked: no answer within {seconds:g} s", "Check it by hand")
        elif isinstance(answer, Exception):  # such as a file of the kernel that is not as expected
            reason = getattr(answer, "strerror", None) or f"{type(answer).__name__}: {answer}"
            answer = note(name, f"not checked: {reason}", "Check it by hand, or run this as another user")
        found += [answer] if isinstance(answer, Finding) else answer
    return found


def _start(check: Callable[[], Finding | list[Finding]]) -> Callable[[float], Finding | list[Finding]]:
    try:
        return UnderWay(check).answer
    except RuntimeError:  # no thread can be started, which `processes` reports: the checks run one by one
        return lambda _seconds: check()


# -- Python and warm start


def check_python(
    own: Callable[[], Interpreter] = facts.own_interpreter,
    ranks: Callable[[], Interpreter] = facts.ranks_interpreter,
) -> list[Finding]:
    """The Python of the launcher, and the Python and torch of the ranks."""
    ours, theirs = own(), ranks()
    check, text = "python", f"{_dotted(ours.version)} ({ours.executable})"
    named, unset = f"PYTHON_EXEC={theirs.executable}", "Unset PYTHON_EXEC, or let it name"
    if not ours.executable:
        unknown = f"the program of this Python {_dotted(ours.version)} is not known"
        return [problem(check, unknown, "Let this user read and run it: ranks are started with it")]
    if theirs.error:
        return [problem(check, f"{named}: {theirs.error}", f"{unset} the Python that runs the ranks")]
    if theirs.version < OLDEST_PYTHON:
        old = f"{named} is Python {_dotted(theirs.version)}, older than {_dotted(OLDEST_PYTHON)}"
        return [problem(check, old, f"{unset} a newer one"), _torch(theirs)]
    if (ours.version, ours.prefix) == (theirs.version, theirs.prefix):
        return [ok(check, text), _torch(theirs)]
    other = f"the ranks run with another Python, {_dotted(theirs.version)} ({theirs.executable})"
    return [note(check, f"{text}; {other}", "Unset PYTHON_EXEC if this is not intended"), _torch(theirs)]


def _torch(ranks: Interpreter) -> Finding:
    check, supported = "torch", f"{_dotted(OLDEST_TORCH)} to {_dotted(NEWEST_TORCH)}"
    install = f"Install it with: pip install 'torch>={_dotted(OLDEST_TORCH)}'"
    if not ranks.torch:
        return problem(check, f"not installed for {ranks.executable}", install)
    if release(ranks.torch) < OLDEST_TORCH:
        return problem(check, f"{ranks.torch} is too old (supported: {supported})", install)
    if release(ranks.torch) > NEWEST_TORCH:
        advice = "Run a short job first; --ft-warm-start off depends on less of torch"
        return note(check, f"{ranks.torch} is newer than the supported versions, {supported}", advice)
    return ok(check, f"{ranks.torch} (supported: {supported})")


def check_driver(driver: Callable[[], str] = proc.nvidia_driver) -> Finding:
    """Whether this machine has an NVIDIA driver."""
    found = driver()
    return ok("NVIDIA driver", f"present ({found})" if found else "none on this machine")


def check_import_names(names: Callable[[], list[tuple[str, str]]] = facts.import_names) -> list[Finding]:
    """Other import names that Holdfast answers for."""
    return [ok("import names", f"{name}: {distribution}") for name, distribution in names()]


def check_warm_start(found: Sequence[Finding], cold: str) -> Finding:
    """Whether ranks start warm with `--ft-warm-start auto`.

    Args:
        cold: Why the launcher would start ranks cold; empty if it would not.
    """
    check = "warm start"
    bad = [each.check for each in found if each.verdict == PROBLEM]
    reasons = [f"see `{name}`" for name in ("python", "torch", "kernel") if name in bad]
    reasons += [f"see `{each.check}`" for each in found if each.check == "trial" and each.verdict != OK]
    if cold:
        reasons.insert(0, cold)
    if not reasons:
        return ok(check, "yes: a restarted rank has torch imported already (--ft-warm-start auto)")
    return note(check, f"no, ranks start cold: {'; '.join(reasons)}", f"{COLD} torch itself")


# -- Limits


def check_shm(nproc: int, memory: Callable[[int], Folder] = facts.shared_memory) -> Finding:
    """Room for the boards of the ranks, and for the tensors of PyTorch's data loaders."""
    check, found = "shared memory", memory(nproc)
    mount = f"mount a tmpfs with mode 1777 on {found.path}"
    if found.error:
        what = (
            f"{found.path}: {found.error}; the boards of the ranks need a disk, and data loader workers fail"
        )
        return problem(check, what, f"Free space there, enlarge it, or {mount} (docker run --shm-size=8g)")
    text = f"{found.path}: {size(found.free)} free of {size(found.size)}, writable"
    if found.filesystem not in ("tmpfs", "ramfs"):
        text += f", but it is {found.filesystem or 'not a tmpfs'}: a heartbeat may wait for a disk"
        return note(check, text, mount.capitalize())
    if found.free <= USUAL_SHM * nproc:
        advice = "Enlarge it if batches pass through it (docker run --shm-size=8g; emptyDir in memory)"
        text += f"; enough for the boards of {count(nproc, 'rank')}"
        return note(check, f"{text}, but data loader workers may get a bus error", advice)
    return ok(check, text)


def check_memory(
    nproc: int,
    available: Callable[[], int] = facts.available_memory,
    cgroup: Callable[[], Limit | None] = cgroups.memory,
) -> Finding:
    """Bytes that the machine and the container have left for each rank."""
    check, left, limit = "memory", available(), cgroup()
    text = f"{size(left)} available"
    if limit is not None and limit.left < left:
        left = limit.left
        text = f"{size(left)} available (by {limit.name}, {size(limit.used)} of {size(limit.maximum)})"
    text += f", {size(left / nproc)} for each of {count(nproc, 'rank')}"
    if left < RANK_MEMORY * nproc:
        text += f"; importing torch takes {size(RANK_MEMORY)}, so the kernel will kill ranks"
        return problem(check, text, "Start fewer ranks (--nproc-per-node), or give the container more memory")
    if left < RANK_MEMORY_GOOD * nproc:
        text += f"; importing torch takes {size(RANK_MEMORY)} of it"
        return note(check, text, "Make sure that the model and its data loaders fit")
    return ok(check, text)


def check_processes(nproc: int, limits: Callable[[], list[Limit]] = facts.process_limits) -> Finding:
    """The narrowest limit of processes and threads."""
    check = "processes"
    narrowest = min(limits(), key=lambda limit: limit.left, default=None)
    if narrowest is None:
        return ok(check, "no limit of processes and threads applies to this user")
    text = f"room for {narrowest.left} more processes and threads ({narrowest.name}: "
    text += f"{narrowest.used} of {narrowest.maximum})"
    advice = "Raise the limit (ulimit -u; docker run --pids-limit; podPidsLimit of the kubelet)"
    if narrowest.left < LAUNCHER_THREADS + RANK_THREADS * nproc:
        return problem(check, f"{text}: too few for the launcher and {count(nproc, 'rank')}", advice)
    if narrowest.left < RANK_THREADS_GOOD * nproc:
        return note(check, f"{text}: data loaders of {count(nproc, 'rank')} may reach the limit", advice)
    return ok(check, text)


def check_open_files(
    nproc: int,
    limit: Callable[[], tuple[int | None, int | None]] = lambda: facts.resource_limit(resource.RLIMIT_NOFILE),
) -> Finding:
    """RLIMIT_NOFILE (soft, hard), against the launcher and data loaders."""
    check, (soft, hard) = "open files", limit()
    if soft is None:
        return ok(check, "no limit (RLIMIT_NOFILE)")
    text = f"{soft} for each process (RLIMIT_NOFILE)"
    advice = f"Run ulimit -n {FILES_GOOD if hard is None else max(soft, min(hard, 65536))}"
    if hard is not None and hard <= soft:
        advice = "Raise the hard limit (limits.conf, LimitNOFILE=, docker run --ulimit nofile=65536)"
    if soft < LAUNCHER_FILES + RANK_FILES * nproc:
        return problem(check, f"{text}: too few for the launcher of {count(nproc, 'rank')}", advice)
    if soft < FILES_GOOD:
        return note(check, f"{text}: data loaders pass each tensor by a descriptor", advice)
    return ok(check, text)


# -- Kernel


def check_kernel(
    errors: Callable[[], dict[str, str]] = facts.kernel_errors,
    scope: Callable[[], int | None] = lambda: proc.number("/proc/sys/kernel/yama/ptrace_scope"),
    is_capable: Callable[[], bool] = lambda: facts.has_capability(facts.CAP_SYS_PTRACE),
) -> list[Finding]:
    """What a launcher needs of the kernel, tried; and whether native stacks of ranks can be taken."""
    failed = errors()
    missing = [f"{text} ({failed[name]})" for name, text in NEEDED.items() if failed.get(name)]
    kernel = ok("kernel", "pidfds, subreaper, parent-death signals and locks work")
    if missing:
        advice = "Use Linux 5.4 or newer; in a sandbox (gVisor, a seccomp profile) allow these calls"
        kernel = problem("kernel", f"missing: {listed(missing)}", advice)
    if not (reason := failed.get("ptrace", "")):
        return [kernel, ok("ptrace", "stacks of ranks can be taken from outside (py-spy, gdb)")]
    advice = "docker run --cap-add SYS_PTRACE; a pod's securityContext.capabilities.add: [SYS_PTRACE]"
    level = scope()
    if level and not is_capable():
        reason = f"kernel.yama.ptrace_scope is {level}: {PTRACE_SCOPES.get(level, 'no process')} may"
        advice = f"sysctl kernel.yama.ptrace_scope=0, or {advice}"
        if level == 3:
            advice = "Set kernel.yama.ptrace_scope to 0 in /etc/sysctl.d; it takes effect at the next boot"
    text = f"native stacks of ranks cannot be taken ({reason}); training and restarts do not need them"
    return [kernel, note("ptrace", text, advice)]


# -- Names and interfaces


def check_loopback(error: Callable[[], str] = facts.loopback_error) -> Finding:
    """Whether a port of 127.0.0.1 can be listened on and connected to."""
    if reason := error():
        text = f"no port of 127.0.0.1 can be used: {reason}; the ranks of one node meet there"
        advice = "Run ip link set lo up, and let the firewall pass local traffic"
        return problem("loopback port", text, advice)
    return ok("loopback port", "127.0.0.1 can be listened on and connected to")


def check_interfaces(
    variables: Callable[[], dict[str, str]] = facts.interface_variables,
    interfaces: Callable[[], list[str]] = facts.interfaces,
) -> list[Finding]:
    """Variables that name interfaces, such as GLOO_SOCKET_IFNAME."""
    check, found, present = "interfaces", [], interfaces()
    for variable, value in variables().items():
        missing = [name for name in value.split(",") if not _is_present(name.strip(), present, variable)]
        text = f"{variable}={value}"
        if missing:
            text += f": there is no {listed(missing)} on this machine, which has {listed(present)}"
        advice = f"Unset {variable}, or name one of these"
        found.append(problem(check, text, advice) if missing else ok(check, text))
    return found


def _is_present(name: str, present: Sequence[str], variable: str) -> bool:
    """gloo takes names; NCCL takes beginnings of names, `=` before whole names and `^` before excluded ones."""
    if variable.startswith("NCCL") and name.startswith("^"):
        return True
    if variable.startswith("NCCL") and not name.startswith("="):
        return any(each.startswith(name) for each in present)
    return name.removeprefix("=") in present


def check_localhost(resolve: Callable[[], Name] = lambda: facts.resolve("localhost")) -> Finding:
    """`localhost`, by which the ranks of one node find their store."""
    check, found = "localhost", resolve()
    fix = "Write '127.0.0.1 localhost' into /etc/hosts"
    if not found.addresses:
        return problem(check, f"does not resolve: {found.error or 'no address'}", fix)
    text = f"resolves to {listed(found.addresses)}"
    if outside := [address for address in found.addresses if not _is_loopback(address)]:
        return problem(check, f"{text}; {listed(outside)} is not the loopback of this machine", fix)
    if len(found.foreign) == len(found.addresses):
        return problem(check, f"{text}, where this machine cannot listen", fix)
    if found.foreign:
        text += f"; this machine cannot listen at {listed(found.foreign)}"
        advice = "Remove that line from /etc/hosts, or run sysctl net.ipv6.conf.lo.disable_ipv6=0"
        return note(check, f"{text}: every connection attempt fails once before falling back", advice)
    return ok(check, text)


def check_host_name(resolve: Callable[[], Name] = lambda: facts.resolve(socket.gethostname())) -> Finding:
    """This machine's own name, by which other nodes may reach it."""
    check, found = "host name", resolve()
    fine = f"No action needed on one node. {SEVERAL_NODES}"
    if not found.addresses:
        reason = found.error or "no address"
        return note(check, f"{found.name!r} does not resolve ({reason}): gloo uses the loopback", fine)
    text = f"{found.name!r} resolves to {listed(found.addresses)}"
    if found.foreign:
        text += f"; {listed(found.foreign)} is not an address of this machine"
        return note(check, text, f"Fix /etc/hosts or the DNS. {SEVERAL_NODES}")
    if all(map(_is_loopback, found.addresses)):
        return note(check, f"{text}, a loopback address: other nodes would reach themselves", fine)
    return ok(check, text)


def _is_loopback(address: str) -> bool:
    return ip_address(address.partition("%")[0]).is_loopback


# -- Leftovers and folders


def check_boards(boards: Callable[[], tuple[list[str], int]] = facts.board_directories) -> Finding:
    """Board directories whose launcher is dead."""
    check, (dead, running) = "dead jobs' boards", boards()
    jobs = f"running jobs of this user: {running}"
    if not dead:
        return ok(check, f"none; {jobs}")
    text = f"{count(len(dead), 'directory', 'directories')} of killed launchers: {listed(dead)}; {jobs}"
    return note(check, text, "No action needed. The next ft_launcher of this user removes them")


def check_orphans(orphans: Callable[[], list[tuple[int, str]]] = facts.orphans) -> Finding:
    """Processes of ranks whose launcher is dead."""
    check, found = "orphaned ranks", orphans()
    if not found:
        return ok(check, "none")
    processes = listed([f"{pid} ({command[:60]})" for pid, command in found])
    text = f"{count(len(found), 'process', 'processes')} of dead jobs: {processes}"
    advice = f"Inspect them, then run kill {' '.join(str(pid) for pid, _ in found[:20])}"
    return problem(check, f"{text}. They may hold GPU memory, ports and files", advice)


def check_run_directory(
    chosen: str | None, folders: Callable[[str | None], list[Folder]] = facts.run_folders
) -> Finding:
    """Where journals are kept: the folder that the user chose, else the default folder or its substitute."""
    check, found = "run directory", folders(chosen)
    usable = next((folder for folder in found if not folder.error), None)
    refused = "; ".join(f"{folder.path} cannot be used: {folder.error}" for folder in found if folder.error)
    if usable is None:
        text = f"{refused}; ft_launcher will not start"
        return problem(check, text, "Give ft_launcher --ft-run-dir a folder of your own")
    text = f"{usable.path}: writable, {size(usable.free)} free"
    if usable is not found[0]:
        text = f"{refused}; journals go to {usable.path}, where they may be cleaned away"
        return note(check, text, "Fix it, or give ft_launcher --ft-run-dir")
    if usable.free < LITTLE_SPACE:
        return note(check, text, "Free some space: the journal loses what a full disk does not take")
    return ok(check, text)


def check_health(wanted: Wanted) -> list[Finding]:
    """What a launcher checks before its node joins; a check that does not apply reports that."""
    checks = Checks(wanted)
    try:
        found = checks.run()
    finally:
        checks.close()
    advice = {SICK: "No rank should train here: repair it, or leave this node out", WARNING: "Look into it"}
    return [
        (problem if each.verdict == SICK else note)(each.check, each.text, advice[each.verdict])
        if each.verdict in advice
        else ok(each.check, each.text if each.verdict == GOOD else f"not checked: {each.text}")
        for each in found
    ]


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))
