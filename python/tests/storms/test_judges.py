"""The storms' judges report every violated guarantee, and nothing else.

`check.sh --deep` runs the storms themselves.
"""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace

import calls
import differs
import harness
import kills
import lanes
import mixes
import numpy as np
import outages
import pytest
import scribbles
import stops
from calls import Call
from harness import Ending, Job, Place, Rank, Wrong

HERE = Place("shm")
# Violations in every storm.
NEVER = ("wrong", "hang", "crash", "panic")


def told(rank: int, kind: str, *blamed: int) -> Ending:
    return Ending(rank, kind, blamed)


@pytest.mark.parametrize(
    ("survivor", "is_right"),
    [
        (told(2, "PeerFailedError", 1), True),
        (told(2, "PeerFailedError", 0), False),
        (told(2, "AbortedError", 1), False),
        (told(2, "BootstrapError"), False),
        (told(2, "ok"), False),
        *((told(2, kind), False) for kind in NEVER),
    ],
)
def test_a_survivor_names_who_was_killed_and_nobody_else(survivor: Ending, is_right: bool) -> None:
    endings = [told(0, "PeerFailedError", 1), told(1, "killed"), survivor]
    assert (kills.judged(1, endings) == []) == is_right


def test_a_victim_that_ends_by_itself_is_a_violation() -> None:
    assert kills.judged(1, [told(0, "PeerFailedError", 1), told(1, "PeerFailedError", 0)])


@pytest.mark.parametrize("kind", ["PeerFailedError", "RingfoldTimeoutError", *NEVER])
def test_who_was_only_stopped_ends_well(kind: str) -> None:
    assert stops.judged([told(0, "ok"), told(1, "ok")]) == []
    assert len(stops.judged([told(0, "ok"), told(1, kind)])) == 1


def outage(kind: str, victim: int) -> outages.Trial:
    """Return a trial with two ranks on host 0 and two on host 1."""
    events = (outages.Event(kind, victim),)
    return outages.Trial((0, 0, 1, 1), events, (0.0,), *outages.USUAL_S, is_left_at_once=False)


ON_BOTH_SIDES = [told(rank, "PeerFailedError", blamed) for rank, blamed in enumerate((3, 3, 0, 1))]


@pytest.mark.parametrize(
    ("kind", "endings", "is_right"),
    [
        *((kind, ON_BOTH_SIDES, True) for kind in ("cut", "bridge", "sends lost")),
        ("cut", [*ON_BOTH_SIDES[:3], told(3, "PeerFailedError", 2)], False),
        ("cut", [told(0, "PeerFailedError", 1), *ON_BOTH_SIDES[1:]], False),
        ("cut", [*ON_BOTH_SIDES[:3], told(3, "RingfoldTimeoutError", 0)], False),
        ("cut", [*ON_BOTH_SIDES[:3], told(3, "hang")], False),
        (
            "kill",
            [*(told(rank, "PeerFailedError", 3) for rank in range(3)), told(3, "killed")],
            True,
        ),
        ("kill", [*ON_BOTH_SIDES[:3], told(3, "killed")], False),
        ("freeze", [told(rank, "RingfoldTimeoutError", 3) for rank in range(4)], True),
        (
            "freeze",
            [*(told(rank, "RingfoldTimeoutError", 3) for rank in range(3)), told(3, "ok")],
            False,
        ),
        ("freeze", [told(rank, "RingfoldTimeoutError", 2) for rank in range(4)], False),
    ],
)
def test_a_lost_host_is_named_on_both_sides(
    kind: str, endings: list[Ending], is_right: bool
) -> None:
    assert (outages.judged(outage(kind, 3), endings) == []) == is_right


@pytest.mark.parametrize("kind", lanes.KINDS)
def test_a_lane_names_who_was_disturbed(kind: str) -> None:
    trial = next(one for one in map(lanes.drawn, range(1000)) if one.kind == kind)
    trial = replace(trial, ranks=3, victim=1)
    own, due = lanes.own_kinds(kind)[0], lanes.KINDS[kind][0]
    others = ((), ()) if due == "ok" else ((1,), (1,))

    def judged(*blamed: tuple[int, ...], kind: str = due, at: float = 0.0) -> list[str]:
        told = [Ending(rank, kind, named, at) for rank, named in zip((0, 2), blamed, strict=True)]
        return lanes.judged(trial, [told[0], Ending(1, own), told[1]], 0.0)

    assert judged(*others) == []
    assert judged(*others, kind="CorruptError")
    assert judged(*others, kind="hang")
    if due != "ok":
        assert judged((0,), (1,))
        assert judged(*others, at=trial.deadline_s + lanes.GRACE_S + 1)


def test_lanes_are_disturbed_in_all_ways() -> None:
    trials = [lanes.drawn(seed) for seed in range(500)]
    assert {trial.kind for trial in trials} == set(lanes.KINDS)
    modes = {trial.setup.drivers[trial.victim]["SOFTCUDA_MODE"] for trial in trials}
    assert modes == {"threads", "seeded", "stepped"}
    assert {trial.setup.devices for trial in trials} == {(0,), (0, 0), (0, 1)}


def test_trials_have_all_events_and_mixes_are_complete() -> None:
    trials = [outages.drawn(seed) for seed in range(500)]
    assert {trial.events[-1].kind for trial in trials} == set(outages.FINAL)
    assert {str(event) for trial in trials for event in trial.events[:-1]} == {
        *(f"{kind} for 1 s" for kind in outages.SHORT),
        *(f"{kind} for 10 s" for kind in outages.OUTAGES),
    }
    assert len({tuple(sorted(mixes.seats(seed))) for seed in range(mixes.MIXES)}) == mixes.MIXES


@pytest.mark.parametrize("kind", NEVER)
def test_scribbling_excuses_errors_and_elements_but_no_end_of_the_process(kind: str) -> None:
    assert (
        scribbles.judged(
            [told(0, "CorruptError", 1), told(1, "ok"), told(2, "MismatchError", 0, 1)]
        )
        == []
    )
    assert bool(scribbles.judged([told(0, "ok"), told(1, kind)])) == (kind != "wrong")


def trial(difference: str) -> differs.Trial:
    call = Call("all_reduce", "int32", (5, 5, 5))
    return differs.Trial(difference, 1, 2, (call,) * differs.CALLS, call, (False,) * differs.CALLS)


FINE = [told(rank, "ok") for rank in range(3)]
MISMATCHED = [told(rank, "MismatchError", 0, 1) for rank in range(3)]
REFUSED = [told(0, "AbortedError", 1), told(1, "UnsupportedError"), told(2, "AbortedError", 1)]


@pytest.mark.parametrize(
    ("difference", "endings", "is_right"),
    [
        *((difference, FINE, True) for difference in differs.HARMLESS),
        *((difference, MISMATCHED, False) for difference in differs.HARMLESS),
        *((difference, MISMATCHED, True) for difference in differs.DETECTED),
        *((difference, FINE, False) for difference in differs.DETECTED),
        *((difference, REFUSED, False) for difference in differs.DETECTED),
        *(("algorithm", endings, True) for endings in (FINE, MISMATCHED, REFUSED)),
        # A rank that finished before the calls met.
        ("count", [*MISMATCHED[:2], told(2, "ok")], True),
        # An error that names two ranks that make the same call; and an error of another class.
        ("count", [*MISMATCHED[:2], told(2, "MismatchError", 0, 2)], False),
        ("count", [*MISMATCHED[:2], told(2, "RingfoldTimeoutError", 1)], False),
        (
            "root",
            [
                Ending(r, "RingfoldTimeoutError", (1,), 0.0, f"late (in #{r + 7} all")
                for r in range(3)
            ],
            True,
        ),
        (
            "root",
            [Ending(r, "RingfoldTimeoutError", (1,), 0.0, "late (in #7 all") for r in range(3)],
            False,
        ),
        ("list", [*MISMATCHED[:2], told(2, "wrong")], False),
        ("list", [told(rank, "CorruptError", 1) for rank in range(3)], False),
    ],
)
def test_who_differs_is_told_and_named(
    difference: str, endings: list[Ending], is_right: bool
) -> None:
    assert (differs.judged(trial(difference), endings, [0.1] * 3) == []) == is_right


def test_an_error_after_the_deadline_is_too_late() -> None:
    assert differs.judged(
        trial("count"), MISMATCHED, [0.1, 0.1, differs.DEADLINE_S + differs.GRACE_S + 1]
    )


@pytest.mark.parametrize("difference", [*differs.DETECTED, *differs.EITHER])
def test_what_differs_in_a_trial_differs_for_the_odd_rank(difference: str) -> None:
    found = [
        one
        for one in (differs.drawn(seed, 3) for seed in range(1500))
        if one.difference == difference
    ]
    assert len(found) > 10
    for one in found:
        call, other = one.calls[one.at], one.other
        if difference == "matrix":
            assert (call.sent(one.odd), call.received(one.odd)) != (
                other.sent(one.odd),
                other.received(one.odd),
            )
            # The block that a rank keeps for itself is in both of its lists.
            assert other.sent(one.odd)[one.odd] == other.received(one.odd)[one.odd]
        elif difference == "list":
            assert call.counts != other.counts and sum(call.counts) == sum(other.counts)
        elif difference != "skip":
            assert call != other


def by_hand(call: Call, rank: int) -> list[float] | None:
    """Compute results element by element, for three ranks."""
    inputs = [call.input(peer).tolist() for peer in range(3)]
    begin = sum(call.counts[:rank])
    part = slice(begin, begin + call.counts[rank])
    if call.collective in ("reduce", "gather") and rank != call.root:
        return None
    match call.collective:
        case "all_reduce" | "reduce":
            return [sum(column) for column in zip(*inputs, strict=True)]
        case "reduce_scatter":
            return [sum(column) for column in zip(*inputs, strict=True)][part]
        case "broadcast":
            return list(inputs[call.root])
        case "scatter":
            return list(inputs[call.root][part])
        case "sendrecv":
            return list(inputs[rank - 1])
        case "all_to_all":
            matrix = call.matrix or (call.counts,) * 3
            return [
                x
                for row, values in zip(matrix, inputs, strict=True)
                for x in values[sum(row[:rank]) :][: row[rank]]
            ]
    return [x for values in inputs for x in values]


@pytest.mark.parametrize("collective", calls.COLLECTIVES)
def test_what_is_due_is_what_the_definition_says(collective: str) -> None:
    even = Call(collective, "int64", (3, 3, 3), root=1, salt=5)
    uneven = (
        {"matrix": ((1, 0, 2), (3, 4, 1), (0, 5, 2))}
        if collective == "all_to_all"
        else {"counts": (0, 4, 2), "uneven": True}
    )
    is_listed = collective in calls.LISTED or collective == "all_to_all"
    for call in (even, replace(even, **uneven)) if is_listed else (even,):
        for rank in range(3):
            due = call.due(rank)
            assert (None if due is None else due.tolist()) == by_hand(call, rank)


def test_one_wrong_element_is_seen() -> None:
    call = Call("all_gather", "float32", (100, 0, 7), uneven=True)
    due = call.due(0)
    assert due is not None
    call.check(0, due.copy())
    for wrong in (
        due + np.eye(1, 107, 50, dtype="float32")[0],
        due[:-1],
        due.astype("float64"),
        None,
    ):
        with pytest.raises(Wrong):
            call.check(0, wrong)


def seen(program: Callable[[Rank], None], limit_s: float = 30.0) -> list[Ending]:
    with Job(program, 2, HERE) as job:
        return job.finish(limit_s)


def ends_as(rank: Rank, kind: str) -> None:
    if rank.rank == 1:
        match kind:
            case "hang":
                signal.pause()
            case "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "panic":
                os.write(2, b"thread 'main' panicked at src/lib.rs:1:1\n")
            case "wrong":
                return rank.say_ended(Wrong("1 instead of 2"))
    rank.say_ended(None)


@pytest.mark.parametrize("kind", NEVER)
def test_a_bad_end_of_a_rank_is_seen(kind: str) -> None:
    endings = seen(lambda rank: ends_as(rank, kind), limit_s=1.0 if kind == "hang" else 30.0)
    assert [ending.kind for ending in endings] == ["ok", kind]
    if kind == "hang":
        assert "in ends_as" in endings[1].text


def test_nothing_of_a_job_is_left() -> None:
    def program(rank: Rank) -> None:
        rank.fork_that_lives_on()
        rank.say("ready")
        signal.pause()

    before = set(os.listdir("/proc/self/fd"))
    with Job(program, 2, HERE) as job:
        assert job.wait_for("ready")
        pids = [job.pid(rank) for rank in range(2)]
    assert set(os.listdir("/proc/self/fd")) == before
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.killpg(pid, 0)


def test_a_round_of_stops_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stops, "STOPS", 2)
    monkeypatch.setattr(stops, "LENGTHS_S", (0.001,) * len(stops.LENGTHS_S))
    outcome = stops.round_(3, HERE)
    assert outcome.count >= 2 and len(outcome.rows) >= 2 and outcome.violations == []


def test_a_rank_that_takes_its_time_is_waited_for() -> None:
    def program(rank: Rank) -> None:
        time.sleep(0.05 * rank.rank)
        rank.say("ready")
        rank.say_ended(None)

    with Job(program, 3, HERE) as job:
        assert job.wait_for("ready")
        assert not job.wait_for("never", limit_s=harness.WATCHDOG_S)
        assert [ending.kind for ending in job.finish()] == ["ok"] * 3
