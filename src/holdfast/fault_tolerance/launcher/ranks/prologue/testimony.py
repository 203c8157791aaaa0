"""What a rank's helper thread tells of its process: the Python stacks of all threads, and the last entries of torch's
flight recorder for each process group.

Everything of torch here is private and may be missing or different: then a sentence says so. An answer is JSON of less
than 256 KB. It holds the interpreter's lock while it walks the stacks and while torch prints its recorder, some
milliseconds. Does not cover: native stacks; point-to-point operations of gloo, which torch does not record.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MOST = 250_000
FRAMES, THREADS, ENTRIES, GROUPS, MEMBERS = 64, 64, 16, 32, 4096
RECORDERS = "_dump_fr_trace_json", "_dump_nccl_trace_json"
"""gloo's and other backends', NCCL's."""


def answers(asked: "list[str]") -> "Iterator[str]":
    """The answer to these questions: first the stacks at once, then with the flight recorder as well."""
    import json  # long imported when somebody asks; not yet when a rank starts
    import time

    answer: dict[str, Any] = {"questions": asked, "pid": os.getpid(), "complete": False}
    answer["threads"] = threads()
    yield json.dumps(answer)
    begun = time.monotonic()
    groups, why = collectives()
    answer.update(complete=True, groups=groups, no_collectives=why, took=time.monotonic() - begun)
    text = json.dumps(answer)
    if len(text) > MOST:
        answer["groups"] = [{**group, "members": []} for group in groups]
        text = json.dumps(answer)
    if len(text) > MOST:
        answer.update(
            groups=[], no_collectives="unavailable: there are too many process groups for one answer"
        )
        text = json.dumps(answer)
    yield text


def threads() -> "list[dict[str, Any]]":
    """Every Python thread but this one, the main thread first; the innermost frame first."""
    import _thread

    threading: Any = sys.modules.get("threading")
    known = dict(getattr(threading, "_active", {}))  # not enumerate(): it takes a lock
    main = getattr(getattr(threading, "_main_thread", None), "ident", None)
    found = []
    for ident, frame in sys._current_frames().items():
        if ident != _thread.get_ident():
            thread = known.get(ident)
            name = (
                "MainThread"
                if ident == main
                else str(getattr(thread, "_name", "") or f"thread {ident}")[:100]
            )
            found.append({"name": name, "main": ident == main, "frames": _frames(frame)})
    if main is None and len(found) == 1:
        found[0].update(name="MainThread", main=True)
    found.sort(key=lambda thread: not thread["main"])
    return found[:THREADS]


def _frames(frame: "Any") -> "list[list[Any]]":
    frames: list[list[Any]] = []
    while frame is not None and len(frames) < FRAMES:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        frames.append([name[:200], code.co_filename[-500:], frame.f_lineno or 0])
        frame = frame.f_back
    return frames


def collectives() -> "tuple[list[dict[str, Any]], str]":
    """The last entries by process group, and why there are none, or not all."""
    import json

    try:
        c10d = sys.modules.get("torch.distributed.distributed_c10d")
        if c10d is None or c10d._world.default_pg is None:
            return [], "unavailable: the program has no process group"
        found = []
        without = []
        for dump in _recorders():
            made, uncounted = _groups(json.loads(dump()), _members(c10d))
            found += made
            without += uncounted
    except Exception as error:
        return [], f"unavailable: torch's flight recorder: {type(error).__name__}: {error}"[:300]
    if without:
        return found, (
            f"unavailable for {', '.join(without[:4])}: point-to-point operations count there as well, so that the "
            "numbers of two ranks cannot be compared"
        )
    return (
        found,
        "" if found else "unavailable: torch's flight recorder is empty, or off (TORCH_FR_BUFFER_SIZE=0)",
    )


def _recorders() -> "list[Any]":
    native = sys.modules["torch"]._C._distributed_c10d
    found = [getattr(native, name) for name in RECORDERS if hasattr(native, name)]
    if not found:
        raise LookupError("this torch has none that can be read")
    return found


def _members(c10d: "Any") -> "dict[str, list[int]]":
    """Global ranks by the group's name, where torch still knows the group."""
    try:
        world = c10d._world
        names = list(world.pg_names.items())
        return {str(name): sorted(world.pg_group_ranks.get(group, ())) for group, name in names}
    except Exception:
        return {}


def _groups(
    dump: "dict[str, Any]", members: "dict[str, list[int]]"
) -> "tuple[list[dict[str, Any]], list[str]]":
    by_group: dict[tuple[str, str], list[dict[str, Any]]] = {}
    entries = dump.get("entries") or []
    for entry in entries:
        name, what = (*entry.get("process_group", ()), "", "")[:2]
        by_group.setdefault((str(name), str(what)), []).append(entry)
    import time

    whole = min((entry.get("record_id", 1) for entry in entries), default=0) == 0
    now, found, uncounted = time.time_ns(), [], []
    latest = sorted(by_group.items(), key=lambda item: -item[1][-1].get("time_created_ns", 0))[:GROUPS]
    for (name, what), of_group in latest:
        numbers = _numbers(of_group, whole)
        title = _title(name, what)
        if numbers is None:
            uncounted.append(title)
            continue
        last = list(zip(numbers, of_group, strict=True))[-ENTRIES:]
        ranks = members.get(name, [])
        said = [_entry(number, entry, now) for number, entry in last]
        found.append({"group": title, "members": ranks if len(ranks) <= MEMBERS else [], "entries": said})
    return found, uncounted


def _numbers(entries: "list[dict[str, Any]]", whole: bool) -> "list[int] | None":
    """Sequence numbers that mean the same on every rank of the group. gloo's count what a rank has sent and received
    as well, without recording it: then only counting from the group's first collective helps, while that is known."""
    given = [int(entry["p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id"]) for entry in entries]
    if not all(entry.get("profiling_name", "").startswith("gloo:") for entry in entries):
        return given
    if whole:
        return list(range(1, len(entries) + 1))
    return given if given == list(range(given[0], given[0] + len(given))) else None


def _title(name: str, what: str) -> str:
    if what == "default_pg":
        return what
    return name if what in ("", "undefined") else f"{what} ({name})"


def _entry(number: int, entry: "dict[str, Any]", now: int) -> "dict[str, Any]":
    import json

    state = str(entry.get("state", ""))
    if entry.get("retired") and state == "scheduled":
        state = "completed"  # gloo does not say more
    return {
        "sequence": number,
        "operation": entry.get("profiling_name", "").partition(":")[2] or entry.get("profiling_name", ""),
        "sizes": json.dumps(entry.get("input_sizes", []))[:200],
        "dtype": ", ".join(dict.fromkeys(entry.get("input_dtypes", [])))[:60],
        "state": state,
        "ago": max(0.0, (now - entry.get("time_created_ns", now)) / 1e9),
    }
