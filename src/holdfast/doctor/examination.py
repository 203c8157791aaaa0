"""All checks, in the order in which they are told.

What always holds: the looks at the machine end in time (:mod:`.looks_in_time`); what cannot be looked at is a note in
its place.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from .. import nvidia
from ..fault_tolerance.errors import ConfigError
from ..fault_tolerance.launcher.warm.gpu_evidence import is_tested
from ..fault_tolerance.launcher.warm.plan import Request, why_cold
from ..journal.run_dir import state_folder
from .finding import Finding, note, ok
from .judgements import clock, folders, leftovers, limits, network, shared_memory, warm_start
from .judgements import kernel as kernels
from .looks import cgroups, clocks, import_names, interpreter, lists, places
from .looks import kernel as kernel_look
from .looks import leftovers as leftovers_look
from .looks import limits as limits_look
from .looks import network as network_look
from .looks_in_time import Looks, Unseen
from .script import Script, hiding, look, script_findings
from .trial import trial


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line asks for."""

    nproc: int = 1
    script: Script | None = None
    run_dir: str | None = None
    """Where the job will keep its journal; None: the default place."""
    trial: bool = False
    """Whether to import in a zygote what the script imports."""


def examine(asked: Asked) -> list[Finding]:
    """Look at everything and judge it."""
    offset = clocks.offset()
    looks = Looks({**_of_machine(asked), **_of_job(asked)})
    areas: list[tuple[str, Callable[[], list[Finding]]]] = [
        ("python", lambda: _interpreter(looks)),
        (
            "import names",
            lambda: [ok("import names", f"{name}: {who}") for name, who in looks["import names"]],
        ),
        ("script", lambda: _script(looks, asked)),
        ("warm start", lambda: _warm_start(looks, asked)),
        ("shared memory", lambda: [shared_memory.judge(looks["shared memory"], asked.nproc)]),
        ("limits", lambda: _limits(looks, asked.nproc)),
        ("kernel", lambda: _kernel(looks)),
        ("network", lambda: _network(looks)),
        ("names", lambda: _names(looks)),
        ("leftovers", lambda: _leftovers(looks)),
        ("folders", lambda: _folders(looks, asked)),
        ("clock", lambda: [clock.judge(clocks.look(offset))]),  # last: it compares with the beginning
    ]
    return [finding for name, area in areas for finding in _told(name, area)]


def _told(name: str, area: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return area()
    except (Unseen, OSError) as error:
        return [
            note(name, f"could not be looked at: {error}", "look yourself, or run it again as another user")
        ]


def _of_machine(asked: Asked) -> dict[str, Callable[[], Any]]:
    return {
        "shared memory": lambda: places.shared_memory(asked.nproc),
        "limits": lambda: (limits_look.processes(), limits_look.rdma_devices(), limits_look.core_files()),
        "memory": lambda: (limits_look.available_memory(), cgroups.memory(), cgroups.cpus()),
        "kernel": kernel_look.look,
        "network": lambda: (
            network_look.loopback(),
            (*network_look.port_range(), network_look.reserved_ports(), network_look.listening_ports()),
            network_look.loopback("::1"),
            (network_look.wanted_interfaces(), network_look.present_interfaces()),
        ),
        "localhost": lambda: network_look.name("localhost"),
        "host name": network_look.own_name,
    }


def _of_job(asked: Asked) -> dict[str, Callable[[], Any]]:
    script, run_dir = asked.script, asked.run_dir
    chosen = None if run_dir is None else os.path.abspath(run_dir)
    return {
        "interpreter": lambda: (interpreter.own(), interpreter.of_ranks(), nvidia.find_driver()),
        "import names": import_names.read,
        "script": lambda: None if script is None else look(script),
        "lists": lambda: _lists(script, chosen),
        "boards": leftovers_look.boards,
        "orphans": leftovers_look.orphans,
        "runs": leftovers_look.runs,
        "folders": lambda: (
            places.state() if chosen is None else places.run_folder(chosen),
            places.fallback(),
        ),
        "temporary": places.temporary,
    }


def _lists(script: Script | None, run_dir: str | None) -> lists.Kept:
    try:
        folder = state_folder() if run_dir is None else run_dir
    except ConfigError:  # no home folder: nothing is kept
        return lists.Kept("")
    if script is None:
        return lists.of_all(folder)
    return lists.of_script(folder, script.name, module=script.module)


def _interpreter(looks: Looks) -> list[Finding]:
    own, ranks, driver = looks["interpreter"]
    if ranks.error:
        return [warm_start.python(own, ranks), warm_start.driver(driver)]
    return [warm_start.python(own, ranks), warm_start.torch(ranks), warm_start.driver(driver)]


def _script(looks: Looks, asked: Asked) -> list[Finding]:
    if asked.script is None:
        return []
    own, ranks, _ = looks["interpreter"]
    if not warm_start.same(own, ranks):
        return [warm_start.elsewhere(asked.script.name)]
    return script_findings(asked.script, looks["script"], looks["lists"])


def _warm_start(looks: Looks, asked: Asked) -> list[Finding]:
    _, ranks, driver = looks["interpreter"]
    errors, _ = looks["kernel"]
    script = asked.script or Script("train.py")
    request = Request("auto", script.name, script.arguments, module=script.module, several=asked.nproc > 1)
    hidden: Sequence[str] = ()
    with suppress(Unseen):
        hidden = hiding(looks["script"], looks["lists"]) if asked.script else ()
    why = why_cold(request, os.environ, is_tested=is_tested(driver))
    tried = [trial(script, looks["script"], asked.nproc)] if asked.trial and asked.script and not why else []
    return [
        warm_start.refused(looks["lists"].refused, looks["lists"].folder),
        *tried,
        warm_start.warm_start(
            ranks,
            why,
            [name for name, error in errors.items() if error],
            hidden,
        ),
    ]


def _limits(looks: Looks, nproc: int) -> list[Finding]:
    rooms, adapters, core = looks["limits"]
    available, cgroup, quota = looks["memory"]
    soft, hard = limits_look.limit(resource.RLIMIT_NOFILE)
    return [
        limits.memory(available, cgroup, nproc),
        limits.processors(len(os.sched_getaffinity(0)), quota, nproc),
        limits.processes(rooms, nproc),
        limits.open_files(soft, hard, nproc),
        limits.locked_memory(limits_look.limit(resource.RLIMIT_MEMLOCK)[0], adapters),
        limits.core_files(core, nproc),
    ]


def _kernel(looks: Looks) -> list[Finding]:
    errors, seized = looks["kernel"]
    return [kernels.features(errors), kernels.ptrace(seized)]


def _network(looks: Looks) -> list[Finding]:
    loopback, ports, loopback6, (wanted, present) = looks["network"]
    return [
        network.loopback(loopback),
        network.ipv6(loopback6),
        network.ports(*ports),
        *network.interfaces(wanted, present),
    ]


def _names(looks: Looks) -> list[Finding]:
    return [network.localhost(looks["localhost"]), network.host_name(looks["host name"])]


def _leftovers(looks: Looks) -> list[Finding]:
    return [
        leftovers.boards(*looks["boards"]),
        leftovers.orphans(looks["orphans"]),
        leftovers.runs(looks["runs"]),
    ]


def _folders(looks: Looks, asked: Asked) -> list[Finding]:
    state, fallback = looks["folders"]
    return [
        folders.run_directory(state, fallback, chosen=asked.run_dir is not None),
        folders.temporary(looks["temporary"], os.environ.get("TMPDIR")),
    ]
