"""The kinds of events in the journal: when each is recorded, and its fields, in Markdown. Pure.

docs/reference/journal.md is made from it by `make reference`; a new kind is an entry here. A reader has to expect kinds
and fields that are not here, of a newer version.

Does not cover: `t`, `mono`, `node` and `kind`, which every event has (`holdfast.journal.event`).
"""

from __future__ import annotations

KINDS: dict[str, tuple[str, str]] = {
    # kind: (when, fields)
    "run_start": (
        "the launcher starts",
        "`run_id`, `argv` ([without secrets](security.md#secrets-in-reports)), `limits`, `nodes`, `nproc`;"
        " of its process `pid`, `started` (clock ticks since boot), `pid_namespace` and `age` (seconds until now)",
    ),
    "cycle_start": (
        "all ranks are about to be started",
        "`cycle`, `world_size`, `node_rank`, `leader` (the name of node 0)",
    ),
    "rank_start": (
        "a rank was started",
        "`cycle`, `rank`, `local_rank`, `pid`, `start` (`warm` or `cold`)",
    ),
    "rank_connect": (
        "a rank called `init_workload_monitoring`",
        "`cycle`, `rank`, `local_rank`, `pid`",
    ),
    "first_heartbeat": (
        "a rank's first heartbeat in this cycle",
        "`cycle`, `rank`, `pid`, `at` (monotonic), `step`; `counted` if it is an [optimizer "
        "step](optimizer-steps.md) that was counted",
    ),
    "first_section": (
        "its first section",
        "`cycle`, `rank`, `pid`, `at` (monotonic), `step`; `counted` if it is an [optimizer "
        "step](optimizer-steps.md) that was counted",
    ),
    "first_step": (
        "its first step",
        "`cycle`, `rank`, `pid`, `at` (monotonic), `step`; `counted` if it is an [optimizer "
        "step](optimizer-steps.md) that was counted",
    ),
    "counted_steps": (
        "a cycle is over in which optimizer steps were counted",
        "`cycle`, `ranks`, `steps` (the lowest of any rank), `first`, `longest` (seconds)",
    ),
    "progress": (
        "every 5 minutes of a cycle, at each incident, and at the end of the cycle",
        "[fields](#progress)",
    ),
    "suspicion": (
        "a rank is late, its limit not passed yet",
        "`rank`, `reason`, `waited`, `limit`",
    ),
    "verdict": (
        "a limit is passed, and evidence was taken",
        "`rank`, `pid`, `reason`, `overdue_rank` (whose limit it is), `waited`, `limit`, `text`, `where`, "
        "`step`, `signal`, `others` (where the other ranks are); what this node's evidence says: `cause`, "
        "`culprit` (a rank), `confidence`, `sentence`, `evidence_mono` (when it was complete)",
    ),
    "overdue": (
        "a hang is handled, and this rank is past its timeout: one event per rank, the one of the verdict "
        "included",
        "`rank`, `local_rank`, `pid`, `cycle`, `reason`, `section`, `waited`, `limit`, `text`",
    ),
    "recovered": (
        "a rank passed a deadline and was active again while its evidence was captured; it is not terminated",
        "`rank`, `pid`, `reason`, `text`",
    ),
    "incident": (
        "the [report](incident-reports.md) of an incident is there",
        "`cycle`, `rank`, `culprit_node`, `cause` (the kind of verdict), `confidence`, `sentence`, "
        "`followers`, `evidence_mono`, `report` (its folder), `job_goes_on` (where ranks stay at their end "
        "and nothing is ended), `accuses` (the nodes of which one is to blame for sure, if it was a node), "
        "`failure`, `same_failures` and `same_failure_limit` (an exception with its step, how many cycles in "
        "a row have had it, and how many [end the job](launcher.md#a-failure-that-repeats-itself))",
    ),
    "capture": (
        "the monitor begins to take evidence of a hang",
        "`cycle`",
    ),
    "evidence": (
        "it has taken the evidence, and no verdict follows",
        "`cycle`",
    ),
    "launcher_error": (
        "an error inside the launcher; the job continues, or ends in good order with a `run_end`",
        "`what`, `error`, `traceback`",
    ),
    "output_lost": (
        "the disk of `--ft-per-cycle-applog-prefix` returned an error, or did not take lines in time; "
        "recorded once",
        "`path`, `reason`",
    ),
    "gap": (
        "the whole node was suspended; deadlines were extended by that time",
        "`seconds`",
    ),
    "signal_sent": (
        "a rank was sent a signal",
        "`pid`, `rank`, `signal`, `by`",
    ),
    "escalated": (
        "the first signal was not enough",
        "`rank`, `pid`, `signal`",
    ),
    "unreadable": (
        "a rank's board cannot be read; the rank runs unsupervised",
        "`text`",
    ),
    "rank_failing": (
        "an uncaught exception has ended a rank's main thread, and its process is still there",
        "`cycle`, `rank`, `pid`, `error` (`type`, `message`, `traceback`, `at`; null where the program "
        "replaced `sys.excepthook`)",
    ),
    "exit_delayed": (
        "the process of a rank stays after its main thread has ended, or does nothing after all others have "
        "ended with 0",
        "`cycle`, `rank`, `pid`, `has_raised`, `has_finished` (whether its main thread has ended), `seconds`,"
        " `kept_by` (the thread, child or call that keeps it)",
    ),
    "rank_exit": (
        "a rank's process ended",
        "`cycle`, `rank`, `pid`, `exitcode` or `signal`, `meaning`",
    ),
    "stop": (
        "this node's ranks are being stopped",
        "`cycle`, `reason`",
    ),
    "swept": (
        "processes that ranks had left running were ended",
        "`pids`",
    ),
    "restart": (
        "another cycle follows",
        "`cycle` (the next one), `restarts_used`, `max_restarts`, `reason`; with `checkpoint_iteration_file`:"
        " `iteration` (-1: none was read) and `stalled`, the failed cycles in a row in which it did not grow",
    ),
    "iteration_unread": (
        "`checkpoint_iteration_file` has no number; once for each reason",
        "`file`, `reason`",
    ),
    "resume": (
        "the first rank trains again",
        "`cycle`, `rank`, `seconds`",
    ),
    "request": (
        "a rank asked for something",
        "`rank`, `action`, `description`",
    ),
    "preemption": (
        "a signal to end",
        "`signal`, `by` (the rank or node that got it, if not this launcher)",
    ),
    "stop_wanted": (
        "ranks of this node take part in an [agreed stop](signals-and-preemption.md), and the launchers begin"
        " to agree",
        "`signal`, `nodes`",
    ),
    "stop_agreed": (
        "all ranks stop at the same place",
        "`place`, `milliseconds`, `proposals`",
    ),
    "stop_withdrawn": (
        "there is no agreement: each rank stops by itself",
        "`reason`",
    ),
    "straggler_report": (
        "a rank made a [straggler report](straggler.md)",
        "[fields](#straggler_report)",
    ),
    "warm_start": (
        "of the [warm start](warm-start.md): its zygote is ready, refused a module, ended; a waiting standby "
        "has died; or ranks start cold (`off`)",
        "`state`, `reason`, `module`, `packages`, `pid`, `status`",
    ),
    "monitor_replaced": (
        "the monitor died or made no progress",
        "`reason`",
    ),
    "node_lost": (
        "a node is silent for longer than `--ft-node-timeout`",
        "`lost`, `waited`",
    ),
    "node_excluded": (
        "this node leaves, at a rank's request or for its health",
        "`reason`",
    ),
    "node_not_back": (
        "nodes of this cycle take no part in the next one",
        "`cycle`, `lost` (their names)",
    ),
    "health": (
        "a [check of this node](health.md) has a new finding",
        "`cycle`, `check`, `verdict` (`sick` or `warning`), `text`, `hardware`",
    ),
    "node_sick": (
        "a node that its checks find sick asked for a place in this cycle (by node 0)",
        "`cycle`, `sick` (the node's name), `reason`, `trains` (whether it has a place)",
    ),
    "gpu_memory_held": (
        "ranks that ended still hold GPU memory, and a restart waits no longer",
        "`cycle`, `text`",
    ),
    "node_suspected": (
        "the failure of this cycle makes a node, a node domain, or a pair of nodes "
        "[suspect](launcher.md#nodes-that-fail-again-and-again); or the job stops [for a "
        "straggler](lightning-stragglers.md#what-stopping-does), in `journal-<host>.stragglers.jsonl`",
        "`cycle`, `suspect` (the node's name), `domain` or `pair` (`a and b`, of which neither is moved), "
        "`facts` (a sentence); `ranks` of a straggler",
    ),
    "node_replaced": (
        "a suspected or sick node of this cycle takes no part in the next one",
        "`cycle`, `suspect` (the node's name), `sick` (why it is so; missing where past failures make it suspect), "
        "`instead` (the node that takes its place; missing where the others continue without it)",
    ),
    "checkpoint_chosen": (
        "rank 0 is about to load a checkpoint (`Loop.last_checkpoint`, the callbacks for Lightning and "
        "Hugging Face); in the rank's own file",
        "`cycle`, `path`",
    ),
    "job_lost": (
        "this node cannot continue the job",
        "`reason`, `host` (the rendezvous host's address, where that is what is gone)",
    ),
    "run_end": (
        "the launcher ends",
        "`exit_code`, `reason`",
    ),
    "controller": (
        "the node controller begins, or enters another cycle",
        "`number`, `cycle`, `now`, `state`; `actions` where it begins. [Replay](incidents-and-journal.md#replay)",
    ),
    "decision": (
        "an input of the node controller had an effect",
        "`number`, `cycle`, `now`, `event`, `actions` (or `error`), `observed`, `prefix`",
    ),
}

FIELDS: dict[str, dict[str, str]] = {
    "progress": {
        "cycle": "the cycle",
        "reason": "`interval`, `incident` or `cycle_end`",
        "seconds": "since the event before, or since the ranks of the cycle were started",
        "ranks": "ranks with a board",
        "steps_least, steps_most": (
            "the last step of the ranks that have given one: the lowest and the highest; null before the "
            "first step"
        ),
        "step_rate": (
            "steps per second since the event before, or since the launcher first read a step; by "
            "`steps_most`. Null where that time is zero or a step is missing"
        ),
        "sections": ("per section `seconds` (all ranks together) and `count` (how often it was closed)"),
        "checkpoints": "finished checkpoints: the lowest count of any rank that saves",
        "checkpoint_step": (
            "the step of the last finished checkpoint: the lowest of any rank that saves; null where none was"
            " given"
        ),
        "inactive": (
            "seconds since the last heartbeat, section edge or mark of the rank that has been inactive for "
            "longest; null before the first"
        ),
        "finished": "seconds since the last rank came to the end of its program; null while one has not",
        "counted": (
            "true if steps are [optimizer steps](optimizer-steps.md) that were counted: they are numbered "
            "from the start of each process"
        ),
    },
    "straggler_report": {
        "cycle, report, rank, step": (
            "the restart cycle, the number of the report in it (from 1), who has it, the training's step "
            "where it is known"
        ),
        "gathered, elapsed_ms": "whether it is of all ranks; what making it took",
        "kernels": (
            "of the rank that has it: the `source` of kernel times, `records`, `dropped`, `share` (of GPU "
            "time that was scored), and why it is no better (`reason`, `note`), as far as there is something "
            "to say"
        ),
        "verdicts": "the first 64: nodes, then ranks, the slowest first",
        "withheld": "why there are none, a sentence each",
        "ranks, overall": (
            "runs of ranks as `[first, count]`; for each rank in this order one score in thousandths: the "
            "GPU's relative one, else the lowest relative one of a section (individual ones where relative "
            "ones were not asked for); null where unknown"
        ),
        "columns": (
            "for each kind of score its `quantiles` (0, 1, 10, 50, 90, 100 %). Of more than 32 sections those "
            "with the lowest scores; `sections_left_out` counts the others"
        ),
        "rows": (
            "rank, node and all its scores in the order of `columns`, for the 16 worst and best ranks by "
            "`overall` and those with a verdict"
        ),
        "nodes": "how many there are",
    },
}
"""The fields of events that have many."""
