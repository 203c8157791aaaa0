"""Faults with their labels (ground truth), and the scenarios made of them. Pure.

A fault is one decorator, which states what is true, above the function that causes it inside of a rank:

    @fault("worker_sleeps", "data_loading", READS, at="data", workers=1)
    def _(point, path): ...

A label is written without the rules at hand and never changed to suit them. It names one kind of verdict, and at most
one more where two are equally true, with the reason. The functions have no names of their own: a name on a stack would
give the answer away. A scenario depends on its fault, phase and variant only, so one that runs alone is the one of the
whole corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from types import MappingProxyType
from typing import Any

from holdfast.incidents.verdict import KINDS

HEALTHY = "healthy"
TOTAL, EVERY = 12, 4
"""Steps of a program, and after how many of them it validates and saves."""

MOMENTS = {
    **{"import": 0, "init": 0, "step": 6, "collective": 6},
    **{"validation": 8, "checkpoint": 8, "shutdown": TOTAL},
    **{"forward": 6, "backward": 6, "exchange": 6, "team": 6},  # of the other programs
}
"""The step at which each phase's fault happens: after the first checkpoint, which is at step 4."""
READS = ("step", "validation")
TRAINING = ("step", "collective", "validation", "checkpoint")
STARTED = ("init", *TRAINING)
EVERYWHERE = ("import", *STARTED, "shutdown")
OWN_CODE = ("init", "step", "validation", "checkpoint")

RANK, NO_RANK, NODE = "rank", "none", "node"
"""Who is to blame: the one rank in which it happens; none, as it happens in all of them; a whole node."""

CLIENT, COUNTED, SHELL = "client", "counted", "shell"
"""How the program is supervised: by its client's sections and heartbeats; by its counted optimizer steps and one limit;
by its client, with the rank as a child of a shell."""

ELSEWHERE = ("1+1", "2+2", "1+1", "2+1")
THREE, MANY, TEAMS = ("3", "4", "2+2", "3"), ("3", "4", "2+2"), ("4", "2+2", "4")
"""Layouts in which the culprit is not on the rendezvous' host; in which the odd rank of several can be named; in which
the teams of the second program have two ranks."""

FINISHED = ("--ft-finished-timeout=5",)
"""For what stays after its script has finished: without this option such a process is never ended."""

PLACES = ("code", "data", "storage", "hook", "collective", "send", "recv", "joint")
"""Where the action is called, with the `InjectionPoint` and:

- code: nothing more; in the program's own code.
- data, storage: the path of a file that is read or written; it may return another one.
- hook: nothing more; in a hook of the backward pass.
- collective, send, recv: the tensor, and the peer if any; in place of one rank's communication.
- joint: the tensor and a group; in all ranks, before a collective.
"""

_FILES = (
    *("ends", "hangs", "waits", "groups", "healthy"),
    *("third_set", "fourth_set", "fifth_set", "sixth_set", "seventh_set", "eighth_set"),
)

_ORDER = """
kill_9 segfault abort exit_3 os_exit_0 sys_exit_0 exception exception_in_hook - gpu_out_of_memory memory_error
- half_saved sleep busy gil lock two_locks queue file_lock child socket - stop uninterruptible deaf -
worker_stopped worker_sleeps dataset_file dataset_sleeps skipped one_more other_operation other_size
left_out_of_group wrong_port wrong_world_size thread_at_exit exit_handler storage slow_storage all_slow
node_lost other_node - told_to_end interrupted recursion no_space no_descriptors - launcher_lost -
regular_expression process_lock - event thread native_lock - output_of_child question connect store traced
signal_handler finaliser closed_descriptors full_output dataset_server - - all_files all_storage -
saving_child hung_filesystem other_order other_type never_received never_sent - polls_for_file -
hook_on_autograd_thread heartbeats_from_thread import_lock log_lock - future_never_done - database_lock
reader_thread_died dataset_mount_hangs saver_blocked saver_thread_died pool_of_processes pool_process_killed -
asyncio_service dripping_service - upload_at_exit segfault_after_refusal - cpu_limit - - service_resets
service_times_out broken_pipe abort_by_watchdog skipped_send skipped_receive wrong_peer team_skipped
other_group_first one_microbatch_more - - - polled_collective cache_under_lock monitored_barrier - full_queue
- - blocked_loop - log_collector - object_store own_reader_process unread_output gather_to_itself - - -
own_hook cleans_up_first forked_away - - killed_by_pipe eigenvalues - gc_storm awaits_signal joins_with_pauses
log_fifo - hook_into_dead_thread lock_of_loop semaphore_leak - - manager_stopped - worker_leaves saver_killed
saver_stopped compressor_stuck lists_dead_mount - udp polls_service side_channel wrong_group - own_root
pairs_send_first group_without_one - stopped_peers_raise leaves_group other_tag early_stop exit_handler_exits
handler_raises thread_hook_exits - - chained_reset all_raise - decodes_forever - - backward_search
clips_infinity drains_iterator big_power - - barrier_in_lock awaits_event leftover_baton log_shipper
daemon_keeps_output - - metrics_run - parts_of_download service_of_all index_locked half_a_shard -
short_stream worker_bus_error corrupted_shard worker_leaks bucket_stalls - save_locked no_room_to_save -
unknown_token - - - - - unknown_option own_watchdog cache_grows divides_by_zero thread_segfaults
truncated_tokens - no_sync - tag_of_another - skips_save group_alone lonely_barrier joined_early uneven_gather
forgotten_process key_of_one marker_file awaits_debugger watches_folder paused_terminal main_thread_leaves
watchdogs_raise lock_in_finaliser sum_in_sum reads_with_interpreter polled_lock unreadable_result tool_asks
threads_after_fork refused_again key_of_none reader_stopped saves_again short_checkpoint counts_to_256
code_of_tool warning_signal no_text output_in_file wrong_interface no_tokens ring_reversed - meets_again
native_exit
"""
"""In this order faults take layouts and ranks alternately; "-" has the place of one that was merged into another.

A fault that is not in it comes after these."""


@dataclass(frozen=True)
class Fault:
    """One kind of fault, or of a healthy job. `verdict` is true in every phase, but for `waits`."""

    name: str
    verdict: str
    """"": the job is healthy, and no verdict may be given."""
    phases: tuple[str, ...]
    do: Callable[..., Any]
    what: str
    """What happens, in one sentence."""
    at: str = "code"
    """One of `PLACES`."""
    anywhere: bool = False
    """Whether another thread can do it while the main thread is in a collective."""
    also: tuple[str, str] = ("", "")
    """A second kind that is equally true, and why."""
    waits: bool = False
    """A plain wait: a verdict that only says that the rank did not get beyond its start, or its end, is right too."""
    hangs: bool | None = True
    """None: it depends on what the ranks happen to send each other."""
    turns_in: tuple[str, ...] = ()
    """Phases in which it is the other way round: a hang where `hangs` is False, an end where it is True."""
    blames: str = RANK
    layouts: tuple[str, ...] = ("2", "3", "4", "2+2", "2", "1+1", "3", "8")
    """Ranks of each node; scenarios take them alternately."""
    variants: tuple[tuple[str, str], ...] = ()
    """More scenarios: a phase, and how the program is supervised there."""
    needs: tuple[str, ...] = ()
    """What the machine must allow: `cgroup`, `fuse`, `ptrace`."""
    workers: int = 0
    """Of the data loader."""
    options: tuple[str, ...] = ()
    """For Holdfast's launcher, all nodes; later ones win."""
    program: int = 1
    """Which one: 1 is `program`, 2 is `program_2`, and so on."""
    held_out: bool = False
    """Whether no rule was ever written or changed with its result in view."""

    def __post_init__(self) -> None:
        if unknown := {self.verdict, self.also[0]} - {"", *KINDS}:
            raise ValueError(f"{self.name}: {', '.join(sorted(unknown))} is no kind of verdict")
        phases = {*self.phases, *self.turns_in, *(phase for phase, _ in self.variants)}
        if unknown := phases - {*MOMENTS}:
            raise ValueError(f"{self.name}: {', '.join(sorted(unknown))} is no phase")
        if self.at not in PLACES:
            raise ValueError(f"{self.name}: {self.at} is no place of a program")

    def kinds(self, phase: str) -> tuple[str, ...]:
        """Of verdicts that are true when it happens in this phase: the first is the one, another is equally true."""
        at_an_end = {"import": "startup", "init": "startup", "shutdown": "shutdown"}.get(phase, "")
        return tuple(filter(None, (self.verdict, self.also[0], at_an_end if self.waits else "")))


_registered: dict[str, Fault] = {}


def fault(name: str, verdict: str, phases: tuple[str, ...], **more: Any) -> Callable[[Any], Any]:
    """Register the function below as the action of this fault. Its docstring is what happens.

    Args:
        name: Of the fault.
        verdict: The kind that is true; "" for a healthy job.
        phases: In which it happens, each a scenario.
        **more: Other fields of `Fault`.
    """

    def register(do: Callable[..., Any]) -> Callable[..., Any]:
        if name in _registered:
            raise ValueError(f"two faults have the name {name}")
        what = " ".join((do.__doc__ or "").split())
        equally_true = getattr(do, "also", ("", ""))
        _registered[name] = Fault(name, verdict, phases, do, what, also=equally_true, **more)
        return do

    return register


held_out = partial(fault, held_out=True, layouts=("4", "3", "2+2", "2", "3", "1+1"))
second = partial(held_out, program=2)
"""Faults whose labels were written later, by authors without the rules at hand; `second`: in the second program.

Once a rule has been changed for one of them, it has `held_out=False`.
"""


def also(kind: str, why: str) -> Callable[[Any], Any]:
    """Below `fault`: a second kind that is equally true, and why."""

    def mark(do: Any) -> Any:
        do.also = kind, why
        return do

    return mark


def healthy(name: str, phase: str, layout: str = "2", variant: str = CLIENT, **more: Any) -> Any:
    """Register what a healthy job does, in one phase; `blames=NO_RANK`: all of its ranks do."""
    where: dict[str, Any] = {"phases": (phase,)}
    if variant != CLIENT:
        where = {"phases": (), "variants": ((phase, variant),)}
    return fault(name, "", layouts=(layout,), **where, **more)


@cache
def faults() -> Mapping[str, Fault]:
    """Every fault and every healthy job, by name."""
    for file in _FILES:
        import_module(f"{__package__}.{file}")
    place = {name: number for number, name in enumerate(_ORDER.split())}
    found = sorted(_registered.values(), key=lambda one: (not one.verdict, place.get(one.name, len(place))))
    return MappingProxyType({one.name: one for one in found})


def fault_in(file: str, name: str) -> Fault:
    """The fault of this name, without the import of the other files."""
    import_module(f"{__package__}.{file}")
    return _registered[name]


@dataclass(frozen=True)
class Scenario:
    """One job, and what happens in it."""

    fault: Fault
    phase: str
    variant: str
    nodes: tuple[int, ...]
    """Ranks of each node."""
    rank: int
    """In which it happens."""
    shared: bool
    """Whether its nodes share a run directory."""

    @property
    def name(self) -> str:
        """Such as `sleep/step` or `sleep/step/counted`."""
        return "/".join((self.kind, self.phase, *([] if self.variant == CLIENT else [self.variant])))

    @property
    def kind(self) -> str:
        """The fault's name."""
        return self.fault.name

    @property
    def file(self) -> str:
        """In which the fault is."""
        return str(self.fault.do.__module__).rpartition(".")[2]

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of verdicts that are true; none: it is healthy."""
        return self.fault.kinds(self.phase)

    @property
    def hangs(self) -> bool | None:
        """Whether nothing ends by itself, so that evidence can be taken before anything is killed. None: either."""
        return None if self.fault.hangs is None else self.fault.hangs != (self.phase in self.fault.turns_in)

    @property
    def everyone(self) -> bool:
        """Whether it happens in all ranks."""
        return self.fault.blames == NO_RANK

    @property
    def loses_a_node(self) -> bool:
        """Whether a whole node is to blame."""
        return self.fault.blames == NODE

    @property
    def world(self) -> int:
        """All ranks."""
        return sum(self.nodes)

    @property
    def node(self) -> int:
        """The number of the node of `rank`."""
        return next(n for n in range(len(self.nodes)) if self.rank < sum(self.nodes[: n + 1]))

    @property
    def step(self) -> int:
        """At which it happens."""
        return MOMENTS[self.phase]


def scenarios() -> list[Scenario]:
    """All of them, the healthy ones last."""
    ordered, kinds = _ORDER.split(), faults().values()
    ill = [*ordered, *(one.name for one in kinds if one.verdict and one.name not in ordered)]
    well = [one.name for one in kinds if not one.verdict]
    numbers = {name: number for group in (ill, well) for number, name in enumerate(group)}
    return [each for one in kinds for each in _of(one, numbers[one.name])]


def _of(one: Fault, number: int) -> Iterator[Scenario]:
    places = [*((phase, CLIENT) for phase in one.phases), *one.variants]
    for turn, (phase, variant) in enumerate(places, start=number):
        nodes = tuple(int(ranks) for ranks in one.layouts[turn % len(one.layouts)].split("+"))
        if variant == COUNTED and len(nodes) > 1:
            nodes = (sum(nodes),)
        first = sum(nodes[:-1]) if one.layouts == ELSEWHERE else 0
        yield Scenario(one, phase, variant, nodes, first + turn % (sum(nodes) - first), turn % 2 == 0)


def choose(
    only: Sequence[str] = (),
    phases: Sequence[str] = (),
    *,
    one_each: bool = False,
    held_out: bool | None = None,
) -> list[Scenario]:
    """The scenarios of these names (of a fault, of a scenario, or of the file that has the fault) and phases.

    Args:
        one_each: only the middle phase of every fault, and no healthy job.
        held_out: only scenarios that are held out, or only the others.

    Raises:
        ValueError: a name or a phase does not exist.
    """
    every = scenarios()
    names = {each.kind for each in every} | {each.name for each in every} | {HEALTHY, *_FILES}
    if unknown := sorted({*only} - names):
        raise ValueError(f"there is no fault named {', '.join(unknown)}; --list shows all")
    if unknown := sorted({*phases} - set(MOMENTS)):
        raise ValueError(f"there is no phase named {', '.join(unknown)}; there are {', '.join(MOMENTS)}")
    found = [
        each
        for each in every
        if (not only or {each.kind, each.name, each.file, *([] if each.kinds else [HEALTHY])} & {*only})
        and (not phases or each.phase in phases)
        and (held_out is None or each.fault.held_out == held_out)
    ]
    return _one_each(found) if one_each else found


def _one_each(found: Sequence[Scenario]) -> list[Scenario]:
    by_kind: dict[str, list[Scenario]] = {}
    for each in found:
        if each.kinds:
            by_kind.setdefault(each.kind, []).append(each)
    return [own[len(own) // 2] if own[0].phase != "step" else own[0] for own in by_kind.values()]
