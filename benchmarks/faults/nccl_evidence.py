"""Evidence of incidents of NCCL jobs, written by hand from the documented schema, and the truth about each.

The author had read documentation, but no code of the rules; the truth is older than any verdict.
`python -m benchmarks.faults.nccl_evidence [SCORE.json]` prints the verdicts.
It exits 0 if no verdict with high confidence has a wrong rank or a wrong kind.
"""

import json
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.incidents import judge

# fmt: off
Fields = dict[str, Any]
FOLDERS = {"torch": "/opt/env/lib/python3.11/site-packages/torch", "py": "/usr/lib/python3.11"}
NODES = [f"gpu-c{i:02}" for i in range(1, 9)]
# Stacks, the innermost call first: "file:line function".
LOOP = ("train/loop.py:188 Trainer.fit", "train/main.py:61 main", "train/main.py:77 <module>")
ITEM = ("train/loop.py:231 Trainer.log_loss", *LOOP)
SYNCHRONIZE = ("torch/cuda/__init__.py:1216 synchronize", "parallel/schedule.py:402 one_f_one_b", *LOOP)
BARRIER = ("torch/distributed/distributed_c10d.py:5340 barrier", "train/loop.py:260 Trainer.save", *LOOP)
BROADCAST = ("torch/distributed/distributed_c10d.py:3140 broadcast", "train/evals.py:97 Evals.begin", *LOOP)
LINEAR = ("torch/nn/modules/linear.py:134 Linear.forward", "zoo/blocks.py:88 GatedMlp.forward", *LOOP)
RESULT = ("py/threading.py:327 Condition.wait", "py/concurrent/futures/_base.py:451 Future.result")
LOADER = (
    "py/selectors.py:415 PollSelector.select", "py/multiprocessing/connection.py:947 wait",
    "py/multiprocessing/connection.py:440 Connection._poll", "py/multiprocessing/queues.py:113 Queue.get",
    "torch/utils/data/dataloader.py:1291 _MultiProcessingDataLoaderIter._try_get_data",
    "torch/utils/data/dataloader.py:741 _BaseDataLoaderIter.__next__",
)

def frame(line: str) -> Fields:
    file, number, function = line.replace(" ", ":").split(":")
    root, rest = file.split("/", 1)
    path = f"{FOLDERS.get(root, f'/home/ada/lm/{root}')}/{rest}"
    return {"function": function, "file": path, "line": int(number), "native": False}

def thread(name: str, lines: Iterable[str], tid: int) -> Fields:
    frames, main = [frame(line) for line in lines], name == "MainThread"
    return {"name": name, "frames": frames, "main": main, "holds_gil": None, "daemon": not main, "tid": tid}

def process(state: str, channel: str = "", call: str = "", cpu: float = 0.0003, **target: Any) -> Fields:
    """A rank's process; `target` has the other fields of its system call."""
    return {
        "system_call": {"name": call, "target": "", "path": "", "peer": "", "pid": 0, **target},
        "state": state, "wait_channel": channel, "kernel_stack": [channel] if channel else [], "cpu": cpu,
        "switches": 4, "sampled_over": 0.0611, "memory": 9_400_000_000, "read": 0, "read_over": 0.04,
        "threads": [], "children": [], "network_files": [],
    }

BUSY = process("R", cpu=0.0608)  # It computes, or polls for its GPU.
POLLS = process("S", "poll_schedule_timeout.constprop.0", "poll", target="pipe", path="pipe:[88121]")
SLEEPS = process("S", "hrtimer_nanosleep", "clock_nanosleep")
LOCKED = process("S", "futex_wait_queue", "futex")

class Job:
    """A job with 8 ranks per node that wait since `ago` seconds, all for their GPUs; a range is a group.

    Ranks count through tensor, then data, then pipeline parallelism.
    """

    def __init__(self, nodes: int = 1, tp: int = 1, pp: int = 1, *, trigger: str = "hang", ago: float = 600.0,
                 at: tuple[str, ...] = ITEM, timed: bool = True, absent: int = -1, lost: bool = False):
        self.world, self.everyone, stage = nodes * 8, range(nodes * 8), nodes * 8 // pp
        self.trigger, self.ago, self.accused, self.absent_node, self.skew = trigger, ago, 0, absent, 0.0
        self.lost_nodes = [NODES[absent]] if lost else []
        self.tp = [range(first, first + tp) for first in range(0, self.world, tp)]
        self.dp = [range(stage * p + t, stage * (p + 1), tp) for p in range(pp) for t in range(tp)]
        self.pp = [range(first, self.world, stage) for first in range(stage)]
        self.names = {group: str(i) for i, group in enumerate((*self.tp, *self.dp, *self.pp), 1)}
        self.names[self.everyone] = "default_pg"
        # Without TORCH_NCCL_ENABLE_TIMING no start is recorded: a running kernel stays scheduled.
        self.running = "started" if timed else "scheduled"
        self.faults: list[tuple[int, Fields]] = []
        self.ranks = [self._rank(rank) for rank in self.everyone]
        for rank in self.everyone:
            self.sits(rank, BUSY, *at, loop=())

    def _rank(self, rank: int) -> Fields:
        return {
            "rank": rank, "local_rank": rank % 8, "pid": 50000 + rank, "node": NODES[rank // 8], "board": {
                "connected": True, "finished": False, "heartbeats": 4182, "step": 4182, "counted": False,
                "checkpoints": 8, "sections": [], "silent": self.ago + 0.4, "age": 7200.0, "moved": False,
                "events": [], "rhythm": 0.0,
            }, "process": None, "stacks": [], "stacks_from": "rank", "no_stacks": "", "collectives": [],
            "no_collectives": "", "peer": None, "exit": None, "raised": None, "last_lines": [], "stderr": "",
            "passed": None, "notes": [],
        }

    def sits(self, rank: int, process: Fields, *lines: str, loop: tuple[str, ...] = LOOP) -> None:
        """The main thread of a rank does this."""
        # In state D or T, only other threads of the process move.
        pid, still = 50000 + rank, {"cpu": 0.0, "switches": 0} if process["state"] in "DT" else {}
        moves = {key: process[key] for key in ("state", "wait_channel", "cpu", "switches")}
        python = {"tid": pid, "name": "python", **moves, **still}
        stacks = [thread("MainThread", (*lines, *loop), pid)]
        self.ranks[rank].update(process={**process, "threads": [python]}, stacks=stacks)

    def unanswered(self, rank: int, reason: str) -> None:
        missing = {"stacks": [], "no_stacks": reason, "stacks_from": ""}
        self.ranks[rank].update(missing, collectives=[], no_collectives=reason)

    def ends(self, rank: int, status: int, meaning: str, ago: float, **facts: Any) -> None:
        self.unanswered(rank, "ended")
        self.accused = rank
        self.ranks[rank].update(process=None, exit={
            "status": status, "meaning": meaning, "ago": ago, "asked": False, "oom_killed": False,
            "out_of_memory": "", "core_dump": "", "kept_by": "", **facts})

    def raises(self, rank: int, error: str, ago: float, exited: float, *lines: str) -> None:
        self.ends(rank, 1, "exit code 1", exited)
        kind, message = error.split(": ", 1)
        text = f"Traceback (most recent call last):\n{error}"
        self.ranks[rank].update(last_lines=text.splitlines(), raised={
            "type": kind, "message": message, "traceback": text, "ago": ago, "nature": "", "worker": 0,
            "absent": [], "frames": [frame(line) for line in (*lines, *LOOP)]})

    def entry(self, rank: int, group: range, sequence: int, state: str, operation: str = "all_reduce", *,
              sizes: str = "[[4194304]]", ago: float = 0, peer: int | None = None, p2p: bool = False) -> None:
        """One entry of a rank's flight recorder, enqueued after those before it."""
        ago = (ago or self.ago) - 0.001 * len(self.ranks[rank]["collectives"])
        self.ranks[rank]["collectives"].append({
            "sequence": sequence, "operation": operation, "group": self.names[group], "sizes": sizes,
            "dtype": "BFloat16", "state": state, "ago": ago, "p2p": p2p or peer is not None, "peer": peer,
            "members": [[group.start, len(group), group.step]], "backend": "nccl"})

    def enter(self, group: range, sequence: int, missing: Collection[int] = (), *, ahead: int = 0,
              queued: Collection[int] = (), **fields: Any) -> None:
        """All but `missing` enqueued an operation and `ahead` more; the GPUs of `queued` have not begun."""
        for rank in group:
            self.entry(rank, group, sequence - 1, "completed", **fields, ago=self.ago + 1.6)
            if rank not in missing:
                self.entry(rank, group, sequence, "scheduled" if rank in queued else self.running, **fields)
                if ahead:
                    self.entry(rank, group, sequence + ahead, "scheduled", **fields)

    def reduce(self, missing: Collection[int] = (), ahead: int = 2) -> None:
        """The all-reduce of gradients of all groups for data parallelism."""
        for group in self.dp:
            self.enter(group, 8362, missing, ahead=ahead)

    def absent(self, rank: int, process: Fields, *lines: str) -> None:
        """A rank does something else, while all others wait for it in the all-reduce of gradients."""
        self.sits(rank, process, *lines)
        self.reduce({rank})

    def fault(self, rank: int, kind: str, text: str) -> None:
        self.faults.append((rank // 8, {"kind": kind, "text": text, "pid": 50000 + rank}))

    def fragments(self) -> list[Fields]:
        waited = self.ago + 0.4
        text = f"Did not get subsequent heartbeat. Waited {waited:.2f} seconds."
        limit = {"reason": "heartbeat", "waited": waited, "limit": self.ago, "section": "", "text": text}
        self.ranks[self.accused]["passed"] = limit if self.trigger == "hang" else None
        return [{"schema": 2, "node": self._node(i)} for i in range(self.world // 8) if i != self.absent_node]

    def _node(self, i: int) -> Fields:
        at, diagnoses = 1795737449.0 + self.skew * i, self.trigger == "diagnose"
        acts = i == self.accused // 8 and not diagnoses
        return {
            "node": NODES[i], "trigger": self.trigger if acts or diagnoses else "elsewhere", "cycle": 0,
            "run_id": "20261126-235720-77ad93", "node_rank": i, "nodes": self.world // 8, "at": at,
            "world_size": self.world, "cycle_start": at - 7201.0, "mono": 91000.0 + 311 * i, "took": 0.09,
            "accused": self.accused if acts else None, "lost_nodes": self.lost_nodes, "reason": "",
            "notes": [], "faults": [f for n, f in self.faults if n == i], "ranks": self.ranks[8 * i :][:8],
        }

class Incident(NamedTuple):
    name: str
    culprits: set[int | None]  # Any of them is right; with None, a verdict without a rank.
    kinds: list[str]
    why: str
    job: Job

INCIDENTS: list[Incident] = []

def incident(culprits: Iterable[int | None], kinds: str, **job: Any) -> Callable[..., None]:
    """Register the incident that a function makes of a job; its docstring says why the culprits are right."""
    def register(build: Callable[[Job], None]) -> None:
        made = Job(**job)
        build(made)
        INCIDENTS.append(Incident(build.__name__, set(culprits), kinds.split(), build.__doc__ or "", made))
    return register

@incident({5}, "data_loading")
def loader_starved(job: Job) -> None:
    """Rank 5 waits for its data loader, whose worker is blocked in a read, and not in the all-reduce."""
    state, frames = {"state": "D", "wait_channel": "cl_sync_io_wait"}, [frame("corpus/shards.py:51 read")]
    worker = {"pid": 60211, "command": "pt_data_worker", **state, "cpu": 0.0, "frames": frames}
    job.absent(5, {**POLLS, "children": [worker]}, *LOADER)

@incident({11}, "uninterruptible", nodes=2, at=LINEAR, timed=False)
def read_in_state_d(job: Job) -> None:
    """Rank 11 is blocked in a read; full queues of GPUs and old memory errors of another one are no cause."""
    read = process("D", "cl_sync_io_wait", "pread64", target="file", path="/lustre/c4/shard-0712.bin")
    job.absent(11, read, "corpus/binary.py:77 Reader.block", "corpus/mixture.py:140 Mixture.next")
    job.fault(3, "gpu_before", "nvidia-smi: GPU 3 has 2 uncorrectable errors since its driver was loaded")

@incident({13}, "user_code", nodes=4, tp=4)
def sleeps_upstream(job: Job) -> None:
    """Rank 13 sleeps; its tensor group waits for it, and all others for this group, whose CPUs ran ahead."""
    job.sits(13, SLEEPS, "quota/backoff.py:37 Budget.wait_turn", "zoo/attention.py:204 Attention.forward")
    for group in job.tp:
        job.enter(group, *((90211, {13}) if 13 in group else (90241, group)), ahead=29)
    for group in job.dp:
        job.enter(group, 3104, {13}, queued={12, 14, 15})

@incident({6}, "stopped", nodes=2)
def sigstopped(job: Job) -> None:
    """Rank 6 is stopped by a signal."""
    job.absent(6, process("T", "do_signal_stop", cpu=0.0))
    job.unanswered(6, "stopped")

@incident({9}, "out_of_memory", nodes=2, trigger="crash", ago=2.0)
def oom_killed(job: Job) -> None:
    """The kernel killed rank 9 because memory ran out."""
    job.reduce({9})
    text = "kernel log: Out of memory: Killed process 50009 (python) total-vm:812334052kB"
    job.ends(9, -9, "killed by SIGKILL", 1.2, oom_killed=True, out_of_memory=text)
    job.fault(9, "oom_kill", text)

@incident({2}, "mismatched_collective", timed=False)
def other_sizes(job: Job) -> None:
    """Rank 2 reduces an embedding with another padding of the vocabulary."""
    job.enter(job.everyone, 77, {2}, sizes="[[50304, 1024]]")
    job.entry(2, job.everyone, 77, "scheduled", sizes="[[50257, 1024]]")

@incident({None}, "mismatched_collective", nodes=2)
def half_and_half(job: Job) -> None:
    """The two nodes took different branches, each with eight ranks: no rank can be accused."""
    job.enter(job.everyone, 640, range(8, 16))
    for rank in range(8, 16):
        job.entry(rank, job.everyone, 640, "started", "broadcast", sizes="[[1]]")

@incident({3}, "mismatched_collective behind", at=BARRIER)
def skipped_barrier(job: Job) -> None:
    """Rank 3 left out the barrier at the end of a step, and is in the first all-reduce of the next one."""
    job.enter(job.everyone, 200, {3}, operation="all_reduce_barrier", sizes="[[1]]")
    job.entry(3, job.everyone, 200, "started")
    job.sits(3, BUSY, *ITEM, loop=())
    job.ranks[3]["board"]["step"] = 4183

@incident({2}, "user_code", pp=4, at=SYNCHRONIZE)
def pipeline_stage_never_sends(job: Job) -> None:
    """Rank 2 computes; its neighbours in the pipeline wait for it, and the other pipeline for this one."""
    job.sits(2, BUSY, "zoo/rope.py:19 build_table", "zoo/rope.py:44 Rotary.forward")
    # torch counts per rank and group, so a stage in the middle has higher numbers.
    for rank, number, operation, peer, state in (
        (0, 1604, "send", 2, "started"), (0, 1605, "recv", 2, "scheduled"), (2, 3205, "recv", 0, "completed"),
        (4, 3206, "send", 2, "started"), (4, 3207, "recv", 2, "scheduled"), (6, 1604, "send", 4, "started"),
        (6, 1605, "recv", 4, "scheduled"), (1, 1616, "recv", 3, "completed"),
        *((rank, n, "send", rank - 2, "completed") for rank, n in ((3, 3232), (5, 3232), (7, 1616))),
    ):
        job.entry(rank, job.pp[rank % 2], number, state, operation, peer=peer)
    job.reduce(job.pp[0])

@incident({None}, "mismatched_collective unknown", pp=2, at=SYNCHRONIZE)
def both_receive(job: Job) -> None:
    """In an evaluation both stages of all pipelines receive first: no rank is more wrong than another."""
    for rank in job.everyone:
        job.entry(rank, job.pp[rank % 4], 5121, "started", "recv", peer=(rank + 4) % 8)
    job.reduce(job.everyone)

@incident({None}, "network unknown", nodes=2)
def all_joined(job: Job) -> None:
    """All GPUs of both nodes have been in the same all-reduce for 10 minutes: the fabric, or NCCL."""
    job.reduce()

@incident({6}, "missing_collective user_code behind")
def gpu_never_starts(job: Job) -> None:
    """Only the GPU of rank 6 has not begun the enqueued all-reduce: a kernel before it does not end."""
    job.enter(job.everyone, 5120, queued={6})

@incident({12}, "uninterruptible", nodes=2)
def gsp_timeout(job: Job) -> None:
    """The GPU of rank 12 does not answer its driver (Xid 119), and its process is blocked in the driver."""
    job.sits(12, process("D", "__down_common", "ioctl", target="file", path="/dev/nvidia4"), *ITEM, loop=())
    job.enter(job.everyone, 771, queued={12})
    job.fault(12, "gpu", "kernel log: NVRM: Xid (PCI:0000:9b:00): 119, Timeout after 6s of waiting for RPC")

@incident({None, *range(16, 24)}, "node_lost", nodes=4, absent=2, lost=True)
def node_lost(job: Job) -> None:
    """There is no sign of the third node any more, and the others wait for its ranks."""
    job.reduce()

@incident({None, *range(16, 24)}, "elsewhere unknown", nodes=4, absent=2)
def node_without_evidence(job: Job) -> None:
    """The third node sent no evidence and all others wait; whether its ranks joined is not known."""
    job.reduce()

@incident({12}, "exception", nodes=2, trigger="crash", ago=7.0)
def skewed_clocks(job: Job) -> None:
    """Rank 12 raised 5 s before rank 3, and ended after it; the clock of its node is 47 s ahead."""
    job.reduce({3, 12})
    job.skew = 47.0
    job.raises(12, "FloatingPointError: loss is nan at step 4182", 6.0, 0.4, "train/guard.py:20 check")
    job.raises(3, "RuntimeError: abort flag is set", 1.0, 0.7, "train/guard.py:41 poll_abort")

@incident({10}, "user_code", nodes=2, at=BROADCAST)
def communicator_never_formed(job: Job) -> None:
    """All but rank 10, which computes a hash, form a communicator for a collective not yet recorded."""
    job.sits(10, BUSY, "corpus/fingerprint.py:28 digest", "train/evals.py:90 Evals.begin")
    job.enter(job.everyone, 16, job.everyone)

@incident({5}, "user_code", trigger="crash")
def watchdog_ends_waiters(job: Job) -> None:
    """Rank 5 sleeps in user code; torch's watchdogs abort the ranks that wait for it, 0 to 2 first."""
    job.absent(5, SLEEPS, "hooks/upload.py:70 retry", "train/loop.py:262 Trainer.save")
    for rank in range(3):
        job.ends(rank, -6, "killed by SIGABRT", 0.5 - 0.1 * rank)
        line = f"[rank{rank}]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8362)"
        job.ranks[rank].update(last_lines=[line], stderr="timed_out")

@incident({4}, "data_loading")
def recorder_read_on_some(job: Job) -> None:
    """Rank 4 waits for its data loader; only ranks 0, 2 and 5 answered with their recorders."""
    job.absent(4, POLLS, *LOADER)
    for rank in (1, 3, 4, 6, 7):
        job.ranks[rank].update(collectives=[], no_collectives="too_late")

@incident({2, 3}, "user_code missing_collective behind", tp=2, timed=False)
def ring_wrapped(job: Job) -> None:
    """Ranks 2 and 3 generate text without an end; their recorders' rings keep nothing of other groups."""
    job.reduce({2, 3}, ahead=0)
    for rank in (2, 3):
        job.sits(rank, BUSY, "infer/decode.py:61 Sampler.until_eos", "train/evals.py:131 Evals.samples")
        job.ranks[rank]["collectives"].clear()
    for rank in job.everyone:
        number, ago = (912345, 0.004) if rank in (2, 3) else (41200, 604.0)
        job.entry(rank, job.tp[rank // 2], number, "completed", sizes="[[1, 8192]]", ago=ago)

@incident({45}, "lock user_code", nodes=8, tp=8, pp=4, at=SYNCHRONIZE)
def chain_of_64(job: Job) -> None:
    """Rank 45 waits for a full queue; its tensor group, other stages and the other replica wait for it."""
    # torch describes the groups of a device mesh by their dimension only.
    for dimension in ("tp", "dp", "pp"):
        job.names |= dict.fromkeys(getattr(job, dimension), f"mesh_{dimension}")
    put = ("py/threading.py:327 Condition.wait", "py/queue.py:140 Queue.put", "metrics/sink.py:88 Sink.emit")
    job.sits(45, LOCKED, *put, "zoo/blocks.py:131 Block.forward")
    for group in job.tp:
        number = 77125 if group[0] % 16 >= 8 else 77193
        job.enter(group, number, {45} if 45 in group else group)
    for group in job.pp:
        for stage, rank in enumerate(group):
            state = "started" if 40 <= group[2] < 48 and stage != 2 else "completed"
            number, peer = (805, 1609, 1608, 804)[stage], group[(1, 2, 1, 2)[stage]]
            job.entry(rank, group, number, state, "recv", peer=peer)
    job.reduce([rank for rank in job.everyone if rank % 16 >= 8], ahead=0)

@incident({4, 13}, "data_loading", nodes=2)
def two_loaders(job: Job) -> None:
    """Ranks 4 and 13 both wait for their data loaders."""
    job.sits(4, POLLS, *LOADER)
    job.sits(13, POLLS, *LOADER)
    job.reduce({4, 13})

@incident({6}, "checkpoint_io lock")
def coalesced_gathers(job: Job) -> None:
    """Rank 6 waits for its thread that writes a checkpoint; all others are in a coalesced all-gather."""
    job.sits(6, LOCKED, *RESULT, "ckpt/background.py:52 Saver.wait", "train/loop.py:258 Trainer.save")
    write = ("torch/serialization.py:1248 _save", "ckpt/background.py:31 Saver.write")
    job.ranks[6]["stacks"].append(thread("ckpt-writer_0", write, 51906))
    job.ranks[6]["board"]["sections"] = [{"name": "checkpointing", "seconds": 599.2}]
    job.enter(job.everyone, 455, {6}, operation="all_gather_into_tensor_coalesced", sizes="[[8192], [512]]")

@incident({5}, "child", pp=2, at=SYNCHRONIZE)
def batched_sends(job: Job) -> None:
    """Rank 5 waits for a program that it started; rank 1 waits for it in a batch of a send and a receive."""
    run = ("py/subprocess.py:2011 Popen._wait", "py/subprocess.py:550 run", "ops/mirror.py:17 push")
    job.sits(5, process("S", "do_wait", "wait4", target="process", pid=60300), *run)
    for rank in job.everyone:
        group, peer = job.pp[rank % 4], (rank + 4) % 8
        for number in (879,) if rank == 5 else (879, 880):
            # torch gives a batch a state, and none to its operations: they stay scheduled.
            for operation in ("send", "recv"):
                job.entry(rank, group, number, "scheduled", operation, peer=peer)
            state = "started" if (rank, number) == (1, 880) else "completed"
            job.entry(rank, group, number, state, "coalesced", p2p=True, sizes="[]")
    job.reduce({1, 5})

def all_to_all(job: Job, missing: int | None) -> None:
    """The second node's experts are in an all-to-all, whose sizes may differ; all others wait for them."""
    for rank in job.everyone:
        experts, enqueued = range(rank // 8 * 8, rank // 8 * 8 + 8), rank != missing
        job.names[experts] = f"ep_{rank // 8}"
        state = "started" if rank >= 8 and enqueued else "completed"
        job.entry(rank, experts, 2063 + enqueued, state, "all_to_all", sizes=f"[[{4000 + 37 * rank}, 4096]]")
    job.reduce(range(8, 16))

@incident({10}, "child lock user_code missing_collective", nodes=2)
def router_compiles(job: Job) -> None:
    """Rank 10 waits for a compilation; its expert group waits in an all-to-all, the rest for that group."""
    job.sits(10, LOCKED, *RESULT, "torch/_inductor/async_compile.py:412 wait", "zoo/router.py:95 route")
    all_to_all(job, 10)

@incident({None}, "unknown network", nodes=2)
def uneven_all_to_all(job: Job) -> None:
    """The second node's expert group has been in an all-to-all for 10 minutes with all its ranks."""
    all_to_all(job, None)

@incident({None, 9}, "slow user_code", nodes=2, ago=10.0)
def straggler(job: Job) -> None:
    """A throttled GPU makes rank 9 slow; it progresses, and the timeout is hardly longer than a step."""
    job.absent(9, BUSY, "zoo/blocks.py:131 Block.forward")
    for rank in job.ranks:
        rank["board"].update(moved=rank["rank"] == 9, silent=0.4 if rank["rank"] == 9 else 10.4, rhythm=9.4)
    job.fault(9, "slow_gpu", "nvidia-smi: GPU 1 is throttled: hardware thermal slowdown")

@incident({None}, "slow unknown", nodes=2, trigger="diagnose", ago=0.09)
def healthy(job: Job) -> None:
    """A healthy job at one moment: rank 3 takes its next batch, the others have waited 0.09 s for it."""
    job.absent(3, {**POLLS, "cpu": 0.021}, *LOADER)
    for rank in job.ranks:
        rank["board"].update(moved=True, silent=0.1, rhythm=2.1)

@incident({None}, "network", nodes=2, tp=8, pp=2, at=SYNCHRONIZE)
def link_between_nodes(job: Job) -> None:
    """The send from rank 3 to rank 11, on the other node, has begun at both ends and does not end."""
    for first, second in job.pp:
        state = "started" if first == 3 else "completed"
        job.entry(first, job.pp[first], 301, state, "send", peer=second)
        job.entry(second, job.pp[first], 301, state, "recv", peer=first)
        state = "scheduled" if first == 3 else "started"
        job.entry(first, job.pp[first], 302, state, "recv", peer=second)
    job.enter(job.tp[0], 5001, job.tp[0])
    job.enter(job.tp[1], 5002, queued={11})

def main(arguments: list[str]) -> int:
    rows: list[Fields] = []
    for name, culprits, kinds, why, job in INCIDENTS:
        verdict = judge(job.fragments()).verdict
        fields = ("rank", "node", "pair", "kind", "confidence", "sentence")
        said = {field: getattr(verdict, field) for field in fields}
        truth = {"ranks": sorted(culprits, key=str), "kinds": kinds, "why": why}
        marks = {"right_rank": verdict.rank in culprits, "right_kind": verdict.kind in kinds}
        marks["wrong_with_high_confidence"] = verdict.confidence == "high" and not all(marks.values())
        rows.append({"name": name, "truth": truth, "said": said, **marks})
        print(f"{name}: {marks}\n  truth: {json.dumps(truth)}\n  said:  {json.dumps(said)}")
    if arguments:
        Path(arguments[0]).write_text(json.dumps(rows, indent=1) + "\n")
    counts = {key: sum(row[key] for row in rows) for key in marks}
    print(f"{len(rows)} incidents:", counts)
    return 1 if counts["wrong_with_high_confidence"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
