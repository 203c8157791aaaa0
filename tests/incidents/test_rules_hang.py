"""Hangs: the rank that is not in the collective, or cannot run, is named, with what it does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.incidents.evidence import (
    CRASH,
    DIAGNOSE,
    EARLY,
    Case,
    Child,
    Frame,
    Missing,
    OpenSection,
    Process,
    RankEvidence,
    StackSource,
    SystemCall,
    Target,
    Thread,
)
from holdfast.incidents.rules.signatures import activity
from holdfast.incidents.verdict import HIGH, LOW, MEDIUM, Verdict
from tests.incidents.cases import STACKS, board, case, ended, entry, frames, judge, limit, node, process, rank

WAITS = [
    "all_reduce",
    "barrier",
    "all_gather_object",
    "monitored_barrier",
    "backward",
    "ddp_forward",
    "ddp_init",
    "fsdp",
]
DOES = {
    "sleep": "user_code",
    "busy": "user_code",
    "event": "lock",
    "join": "lock",
    "queue": "lock",
    "future": "lock",
    "mp_queue": "child",
    "lock": "lock",
    "flock": "lock",
    "child": "child",
    "http": "network",
    "socket": "network",
    "loader": "data_loading",
    "dataset": "data_loading",
    "read": "user_code",
    "torch_save": "checkpoint_io",
    "torch_load": "checkpoint_io",
    "importing": "startup",
    "own_import": "startup",
    "exit": "shutdown",
    "atexit": "shutdown",
    "pipe": "user_code",
    "asyncio": "user_code",
}
AMBIGUOUS = {"pipe", "read", "asyncio"}
"""Native waits of the program's own lines: what the kernel sees has more than one meaning."""
GUESSED = {"lock"}
"""A futex alone: a lock, or a wait for a peer."""


def one_outside(where: str, wait: str = "all_reduce") -> Verdict:
    others = [rank(number, wait) for number in (0, 1, 3)]
    return judge(case(*others, rank(2, where), world_size=4))


@pytest.mark.parametrize("where", DOES)
def test_the_one_rank_outside_of_the_collective_is_named_with_what_it_does(where: str) -> None:
    verdict = one_outside(where)

    assert (verdict.rank, verdict.kind) == (2, DOES[where])
    assert verdict.confidence == (LOW if where in GUESSED else MEDIUM if where in AMBIGUOUS else HIGH)
    assert verdict.followers == (0, 1, 3) and verdict.node == "a"


@pytest.mark.parametrize("wait", [*WAITS, "init", "new_group", "dcp_save"])
def test_each_way_to_wait_for_peers_is_recognised(wait: str) -> None:
    verdict = one_outside("sleep", wait)

    assert (verdict.rank, verdict.kind, verdict.confidence) == (2, "user_code", HIGH)


@pytest.mark.parametrize("where", ["all_reduce", "sleep", "loader", "atexit", ""])
@pytest.mark.parametrize("state", ["T", "t"])
def test_a_stopped_rank_is_to_blame_wherever_it_is(where: str, state: str) -> None:
    stopped = rank(1, where, process=process("sleep", state=state))
    verdict = judge(case(rank(0), stopped, rank(2, "sleep")))

    assert (verdict.rank, verdict.kind, verdict.confidence) == (1, "stopped", HIGH)


def test_a_rank_in_the_kernel_is_named_with_the_file() -> None:
    call = SystemCall("read", Target.FILE, "/nfs/part-7 (nfs4)")
    stuck = rank(1, "read", process=process("read", state="D", system_call=call))
    verdict = judge(case(rank(0), stuck))

    assert (verdict.rank, verdict.kind, verdict.confidence) == (1, "uninterruptible", HIGH)
    assert "/nfs/part-7" in verdict.sentence


def test_one_sample_in_state_d_is_no_proof() -> None:
    stuck = rank(1, "read", process=process("read", state="D", sampled_over=0.0))

    assert judge(case(rank(0), stuck)).confidence == MEDIUM


def test_a_stopped_loader_worker_is_a_matter_of_data_loading() -> None:
    workers = (Child(88, "python", "S"), Child(89, "python", "T"))
    verdict = judge(case(rank(0), rank(1, "loader", process=process("loader", children=workers))))

    assert (verdict.rank, verdict.kind, verdict.confidence) == (1, "data_loading", HIGH)


@pytest.mark.parametrize("source", [StackSource.SIGNAL, StackSource.PY_SPY])
@pytest.mark.parametrize("where", ["busy", "sleep", "all_reduce"])
def test_a_rank_whose_helper_does_not_answer_holds_the_interpreter_lock(
    where: str, source: StackSource
) -> None:
    silent = rank(1, where, stacks_from=source, no_collectives=Missing.NO_ANSWER)
    verdict = judge(case(rank(0), silent, rank(2)))

    assert (verdict.rank, verdict.kind, verdict.confidence) == (1, "gil", HIGH)


def test_where_no_helper_answers_the_machine_may_have_no_time_for_them() -> None:
    ranks = [
        replace(rank(0), stacks_from=StackSource.PY_SPY),
        rank(1, "busy", stacks_from=StackSource.PY_SPY, no_collectives=Missing.NO_ANSWER),
    ]

    assert judge(case(*ranks)).confidence == MEDIUM


@pytest.mark.parametrize("where", ["sleep", "busy"])
def test_only_an_answer_of_its_own_proves_that_the_interpreter_lock_is_free(where: str) -> None:
    verdict = judge(case(rank(0), rank(1, where, stacks_from=StackSource.PY_SPY)))

    assert (verdict.rank, verdict.kind, verdict.confidence) == (1, "user_code", MEDIUM)


def test_a_rank_without_a_helper_thread_says_nothing_of_the_interpreter_lock() -> None:
    bare = rank(1, "busy", stacks_from=StackSource.SIGNAL, no_collectives=Missing.NO_HELPER)

    assert judge(case(rank(0), bare)).kind == "user_code"


def test_a_rank_that_tells_its_threads_but_no_main_thread_is_at_its_exit() -> None:
    other = Thread("loader", frames(STACKS["event"]))
    verdict = judge(case(rank(0), rank(1, stacks=(other,)), rank(2, stacks=())))

    assert (verdict.kind, verdict.rank) == ("shutdown", 1)


def test_a_pipe_shared_with_a_child_is_a_wait_for_the_child() -> None:
    shared = process("pipe", system_call=SystemCall("read", Target.CHILD_PIPE, "pipe:[77]", pid=71))

    assert judge(case(rank(0), rank(1, "pipe", process=shared))).kind == "child"


def test_a_sleep_inside_a_checkpoint_is_the_programs_own() -> None:
    section = board(sections=(OpenSection("checkpointing", 31.0),))

    assert judge(case(rank(0), rank(1, "sleep", board=section))).kind == "user_code"
    assert judge(case(rank(0), rank(1, "read", board=section))).kind == "checkpoint_io"


@pytest.mark.parametrize("name", ["data_loading", "ckpt", "fetch_batch"])
def test_a_name_of_the_programs_own_section_explains_nothing(name: str) -> None:
    section = board(sections=(OpenSection("step", 32.0), OpenSection(name, 31.0)))
    verdict = judge(case(rank(0), rank(1, "sleep", board=section)))

    assert verdict.kind == "user_code" and f"in section '{name}'" in verdict.sentence


def test_a_native_wait_that_the_recorder_knows_is_a_collective() -> None:
    done = entry(4, state="completed", ago=40.0)
    waiting = rank(0, "async", collectives=(done, entry(5)))

    assert judge(case(waiting, rank(1, "lock"))).rank == 1


def test_most_ranks_at_one_native_wait_wait_for_the_other() -> None:
    verdict = judge(case(*(rank(number, "async") for number in range(3)), rank(3, "sleep")))

    assert (verdict.rank, verdict.kind) == (3, "user_code")


def test_the_holder_of_a_file_lock_is_named() -> None:
    holder = rank(0, "sleep", pid=4711)
    verdict = judge(case(holder, rank(1, "flock"), rank(2)))

    assert (verdict.rank, verdict.kind) == (0, "user_code")
    assert verdict.followers == (1, 2)


def test_a_holder_that_waits_in_the_collective_is_not_what_the_others_wait_for() -> None:
    verdict = judge(case(rank(0, pid=4711), rank(1, "flock"), rank(2)))

    assert (verdict.rank, verdict.kind, verdict.confidence) == (1, "lock", HIGH)


def test_of_several_outside_the_one_at_an_earlier_step_is_named_without_certainty() -> None:
    late = rank(1, "sleep", board=board(9))
    verdict = judge(case(rank(0), late, rank(2, "busy")))

    assert (verdict.rank, verdict.confidence) == (1, MEDIUM)


def test_only_members_of_the_group_can_be_missing_from_it() -> None:
    waits = rank(0, collectives=(entry(7, group="tp", members=(0, 1)),))
    verdict = judge(case(waits, rank(1, "queue"), rank(2, "http"), rank(3, "busy")))

    assert (verdict.rank, verdict.kind) == (1, "lock")


def test_the_last_rank_that_does_not_end_is_at_its_shutdown() -> None:
    verdict = judge(case(ended(0, 0), ended(1, 0), rank(2, "exit")))

    assert (verdict.rank, verdict.kind, verdict.confidence) == (2, "shutdown", HIGH)


def test_a_rank_that_ended_with_0_is_named_by_those_that_wait_for_it() -> None:
    verdict = judge(case(rank(0), ended(1, 0), rank(2), rank(3)))

    assert (verdict.rank, verdict.kind, verdict.confidence) == (1, "early_exit", HIGH)
    assert verdict.followers == (0, 2, 3)


def test_the_one_that_waits_for_ranks_that_are_done_has_made_one_collective_more() -> None:
    verdict = judge(case(ended(0, 0), ended(1, 0), rank(2), ended(3, 0)))

    assert (verdict.rank, verdict.kind) == (2, "mismatched_collective")


def test_ranks_whom_the_monitor_ended_are_judged_by_what_they_did_before() -> None:
    killed = ended(0, 0).exit
    assert killed is not None
    both = [
        replace(each, exit=replace(killed, status=-9, asked=True)) for each in (rank(0), rank(1, "queue"))
    ]

    assert (judge(case(*both)).rank, judge(case(*both)).kind) == (1, "lock")


def test_ranks_that_wait_to_meet_one_that_still_imports() -> None:
    verdict = judge(case(rank(0, "init"), rank(1, "importing", board=None), rank(2, "init")))

    assert (verdict.rank, verdict.kind) == (1, "startup")


def test_all_wait_and_a_node_has_told_nothing() -> None:
    verdict = judge(case(rank(0), rank(1), nodes=2, world_size=4))

    assert (verdict.rank, verdict.kind, verdict.confidence) == (None, "elsewhere", MEDIUM)


def test_the_culprit_on_the_second_node_is_found_for_both() -> None:
    here = node(rank(0), rank(1), nodes=2, world_size=4, accused=0)
    there = node(
        rank(2), rank(3, "torch_save"), name="b", node_rank=1, nodes=2, world_size=4, trigger="elsewhere"
    )
    verdict = judge(Case((here, there)))

    assert (verdict.rank, verdict.node, verdict.kind, verdict.confidence) == (3, "b", "checkpoint_io", HIGH)
    assert verdict == judge(Case((there, here)))


def test_a_rank_without_a_stack_is_missing_for_an_unknown_reason() -> None:
    verdict = judge(case(rank(0), rank(1, "", process=None), rank(2)))

    assert (verdict.rank, verdict.kind, verdict.confidence) == (1, "missing_collective", MEDIUM)


def test_without_any_stack_the_one_that_sleeps_is_likely() -> None:
    verdict = judge(case(rank(0, ""), rank(1, "", process=process("sleep")), rank(2, "")))

    assert (verdict.rank, verdict.kind) == (1, "user_code")
    assert verdict.confidence != HIGH


def test_without_anything_but_boards_the_one_at_an_earlier_step_is_behind() -> None:
    blind = [rank(number, "", process=None, board=board(10 - (number == 1))) for number in range(3)]
    verdict = judge(case(*blind))

    assert (verdict.rank, verdict.kind, verdict.confidence) == (1, "behind", MEDIUM)


def test_one_rank_alone_that_has_passed_its_limit() -> None:
    verdict = judge(case(rank(0, "queue", passed=limit())))

    assert (verdict.rank, verdict.kind, verdict.confidence) == (0, "lock", HIGH)


def test_ranks_that_all_compute_may_only_be_slow() -> None:
    assert judge(case(rank(0, "busy", passed=limit()), rank(1, "busy"))).kind == "slow"


def test_a_limit_that_was_too_short_accuses_nobody() -> None:
    moving = [
        rank(number, where, board=board(moved=True)) for number, where in enumerate(["sleep", "all_reduce"])
    ]
    verdict = judge(case(replace(moving[0], passed=limit()), moving[1]))

    assert (verdict.rank, verdict.kind) == (None, "slow")


SLOW = [rank(number, "sleep", collectives=(entry(90 + number, ago=0.05),)) for number in range(3)]


def test_ranks_that_come_to_one_collective_after_another_are_slow() -> None:
    verdict = judge(case(replace(SLOW[0], passed=limit()), *SLOW[1:]))

    assert (verdict.rank, verdict.kind, verdict.confidence) == (None, "slow", MEDIUM)


@pytest.mark.parametrize(
    "changes",
    [
        {"collectives": (entry(90, ago=31.0),)},
        {"collectives": ()},
        {"board": board(silent=0.3)},
        {"process": process(state="T")},
    ],
    ids=["stands", "tells nothing", "has given a sign", "is stopped"],
)
def test_one_of_whom_that_cannot_be_said_is_enough_to_look_further(changes: dict[str, object]) -> None:
    verdict = judge(case(*SLOW[:2], replace(SLOW[2], **changes)))  # type: ignore[arg-type]

    assert verdict.kind != "slow"


def test_all_in_the_same_collective_cannot_be_told() -> None:
    verdict = judge(case(rank(0), rank(1)))

    assert (verdict.rank, verdict.kind, verdict.confidence) == (None, "unknown", LOW)


@pytest.mark.parametrize("boards", [None, board(silent=0.1)])
def test_a_diagnosis_of_a_job_that_nobody_suspects_guesses_at_most(boards: object) -> None:
    ranks: list[RankEvidence] = [replace(each, board=boards) for each in (rank(0), rank(1, "sleep"))]  # type: ignore[arg-type]
    verdict = judge(case(*ranks, trigger=DIAGNOSE, accused=None))

    assert verdict.confidence == LOW or verdict.rank is None


def test_a_diagnosis_of_a_job_that_has_long_been_silent_names_the_likely_rank() -> None:
    verdict = judge(case(rank(0), rank(1, "sleep"), trigger=DIAGNOSE, accused=None))

    assert (verdict.rank, verdict.kind, verdict.confidence) == (1, "user_code", MEDIUM)


def test_an_early_sign_of_a_stopped_rank() -> None:
    stopped = rank(1, process=process(state="T"), board=board(silent=2.0))
    verdict = judge(case(rank(0, board=board(silent=2.0)), stopped, trigger=EARLY, accused=1))

    assert (verdict.rank, verdict.kind, verdict.confidence) == (1, "stopped", HIGH)


def test_a_process_that_is_gone_without_a_word() -> None:
    verdict = judge(case(rank(0), rank(1, "", process=process(state="gone")), trigger=CRASH))

    assert (verdict.rank, verdict.kind, verdict.confidence) == (1, "exit", MEDIUM)


def test_without_a_recorder_a_native_wait_is_no_reason_beside_a_rank_that_sleeps() -> None:
    verdict = judge(case(rank(0, "async"), rank(1, "sleep")))

    assert (verdict.rank, verdict.kind, verdict.confidence) == (1, "user_code", MEDIUM)


@pytest.mark.parametrize("function", ["<module>", "Backend"])
def test_torch_distributed_while_it_is_imported_is_no_collective(function: str) -> None:
    stack = f"{function} (torch/distributed/distributed_c10d.py:250)\n" + STACKS["own_import"]
    importing = (Thread("MainThread", frames(stack), main=True),)

    assert judge(case(rank(0, "init"), rank(1, "busy", stacks=importing))).kind == "startup"


def test_a_connection_of_the_event_loop_shows_for_whom_it_waits() -> None:
    call = SystemCall("epoll_wait", Target.SOCKET, "socket:[9]", "10.0.0.7:443")
    waits = rank(2, "asyncio", process=process("asyncio", system_call=call))
    verdict = judge(case(*(rank(number) for number in (0, 1)), waits))

    assert (verdict.rank, verdict.kind) == (2, "network")
    assert "10.0.0.7:443" in verdict.sentence


@pytest.mark.parametrize(
    ("where", "kind"), [("sleep", "user_code"), ("", "lock")], ids=["in its own code", "unknown"]
)
def test_the_holder_of_a_file_lock_does_what_its_stack_shows(where: str, kind: str) -> None:
    holder = rank(0, where, pid=4711)
    assert judge(case(holder, rank(1, "flock"), rank(2))).kind == kind


def test_a_rank_that_computes_at_its_exit_may_be_about_to_end() -> None:
    """On a machine that has too much to do an exit takes longer than a limit."""
    ends = rank(2, "exit", process=process("busy"))
    verdict = judge(case(rank(0), rank(1), ends))
    assert (verdict.rank, verdict.kind, verdict.confidence) == (2, "shutdown", MEDIUM)
    assert judge(case(rank(0), rank(1), rank(2, "exit"))).confidence == HIGH


# -- what keeps the process of a rank that is at its exit, from its stacks and children ------------------------


LIB = "/usr/lib/python3.11"
SHUTDOWN = (Frame("_shutdown", f"{LIB}/threading.py", 1590),)
JOIN = (
    Frame("wait", f"{LIB}/multiprocessing/popen_fork.py", 43),
    Frame("_exit_function", f"{LIB}/multiprocessing/util.py", 360),
)
UPLOAD = (Frame("upload", "/job/train.py", 12), Frame("run", f"{LIB}/threading.py", 982))


def main(*frames: Frame) -> Thread:
    return Thread("MainThread", frames, main=True)


@pytest.mark.parametrize(
    ("threads", "children", "expected"),
    [
        (
            [main(*SHUTDOWN), Thread("up", UPLOAD, daemon=False), Thread("log", UPLOAD, daemon=True)],
            (),
            "is at its exit: it waits for thread 'up', which is in job/train.py:12 upload()",
        ),
        (
            [main(*JOIN)],
            (Child(71, "python worker.py"),),
            "is at its exit: it waits for its child process 71 (python worker.py)",
        ),
        (
            [main(*SHUTDOWN), *(Thread(str(n), UPLOAD, daemon=False) for n in range(5))],
            (),
            "is at its exit: it waits for thread '0', which is in job/train.py:12 upload(), "
            "thread '1', which is in job/train.py:12 upload(), thread '2', which is in job/train.py:12 upload() "
            "and 2 more",
        ),
        (
            [main(*SHUTDOWN)],
            (),
            "is at its exit, in python3.11/threading.py:1590 _shutdown()",
        ),
        ([main(*UPLOAD)], (), "is in job/train.py:12 upload()"),
        ([main()], (), "is at its exit: no Python frame is left"),
        ([], (), "is at an unknown place"),
    ],
)
def test_kept_by_is_named(threads: list[Thread], children: tuple[Child, ...], expected: str) -> None:
    rank = RankEvidence(0, 0, 7, "a", process=Process(children=children), stacks=tuple(threads))
    assert activity(rank).text == expected
