"""Faults as text: what is read, what is written, and the message to the user about a mistake."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.testing import KINDS, Fault, FaultSpecError, parse
from holdfast.testing.fault import render

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("hang@step=12,rank=1,cycle=0 ", Fault("sleep", step=12, rank=1, cycle=0)),
        (" kill@after=5s,rank=random,seed=3", Fault("kill", after=5.0, rank="random", seed=3)),
        ("exit@step=3,code=42", Fault("exit", step=3, code=42)),
        ("exception@step=3,message=out of luck", Fault("exception", step=3, message="out of luck")),
        ("GIL@after=500ms,for=2m", Fault("gil", after=0.5, duration=120.0)),
        ("oom@after=1h,limit=64MiB", Fault("memory", after=3600.0, limit=64 * MIB)),
        ("memory@step=0,limit=1g", Fault("memory", step=0, limit=1024 * MIB)),
        ("deadlock@step=2,how=skip,rank=0", Fault("deadlock", step=2, how="skip", rank=0)),
        ("ignore-term@step=1,rank=all,cycle=each", Fault("ignore_term", step=1, rank="all", cycle="each")),
        ("child@after=0,ignore-term=yes,for=30", Fault("child", after=0.0, ignore_term=True, duration=30.0)),
        ("stop@step=7,point=data_loading", Fault("stop", step=7, point="data_loading")),
        ("random@after=1,rand=2", Fault("random", after=1.0, rand=2.0)),
    ],
)
def test_reads(text: str, fault: Fault) -> None:
    assert parse(text) == (fault,)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no fault"),
        ("hnag@step=1", "unknown fault 'hnag' (did you mean 'hang'?)"),
        ("kill", "say when"),
        ("kill@rank=1", "say when"),
        ("kill@step=1,after=2s", "say when"),
        ("kill@step=-1", "a whole number from 0, not '-1'"),
        ("kill@stpe=1", "unknown key 'stpe' (did you mean 'step'?)"),
        ("kill@step", "'step' is not KEY=VALUE"),
        ("kill@step=1,step=2", "step is given twice"),
        ("kill@after=soon", "a duration such as 5s"),
        ("kill@after=inf", "a duration such as 5s"),
        ("kill@after=1e300", "seconds"),
        ("kill@step=1,rank=last", "a rank, 'random' or 'all', not 'last'"),
        ("kill@step=1,cycle=all", "a restart cycle or 'each'"),
        ("kill@step=1,code=3", "code does not belong to it"),
        ("exit@step=1,code=256", "an exit code from 0 to 255"),
        ("kill@step=1,rand=2s", "rand goes with after"),
        ("kill@after=1s,point=data", "point names an at_step call"),
        ("sleep@step=1,for=0s", "above 0"),
        ("memory@step=1,limit=1k", "from 1MiB"),
        ("deadlock@after=1s,how=skip", "needs step"),
        ("deadlock@step=1,how=never", "'enter' or 'skip'"),
        ("deadlock@step=1,rank=all", "no deadlock"),
        ("child@step=1,ignore_term=maybe", "'yes' or 'no'"),
    ],
)
def test_a_mistake_is_told_in_one_line_that_names_source_and_fault(text: str, words: str) -> None:
    with pytest.raises(FaultSpecError) as caught:
        parse(text, "HOLDFAST_FAULT")
    message = str(caught.value)
    assert words in message
    assert message.startswith("HOLDFAST_FAULT: ") and repr(text) in message and "\n" not in message


seconds = st.floats(0, 1e8, allow_nan=False)
durations = st.none() | st.floats(0.001, 1e8)
options = {
    "code": st.integers(0, 255),
    "message": st.none() | st.text("abc XYZ=@.'", min_size=1).map(str.strip).filter(bool),
    "for": durations,
    "how": st.sampled_from(["enter", "skip"]),
    "limit": st.integers(MIB, 2**50),
    "size": st.integers(1, 2**50),
    "ignore_term": st.booleans(),
}


@st.composite
def faults(draw: st.DrawFn) -> Fault:
    kind = draw(st.sampled_from(sorted(KINDS)))
    fields = {("duration" if key == "for" else key): draw(options[key]) for key in KINDS[kind].options}
    if draw(st.booleans()) or fields.get("how") == "skip":
        fields |= {"step": draw(st.integers(0, 10**9)), "point": draw(st.none() | st.just("data_loading"))}
    else:
        fields |= {"after": draw(seconds), "rand": draw(seconds)}
    ranks = st.integers(0, 10**6) | st.just("random")
    return Fault(
        kind,
        rank=draw(ranks if kind == "deadlock" else ranks | st.just("all")),
        seed=draw(st.none() | st.integers()),
        cycle=draw(st.integers(0, 1000) | st.just("each")),
        **fields,
    )


@given(st.lists(faults(), min_size=1, max_size=3))
def test_what_is_written_is_read_back_as_the_same(some: list[Fault]) -> None:
    assert parse(";".join(render(fault) for fault in some)) == tuple(some)
