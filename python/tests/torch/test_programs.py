"""Random programs: every result of every call is right, in any context.

`TEST_SEED=...` repeats a run, and `TEST_PROGRAM=...` one of its programs. `check.sh --deep` runs
thousands more (`storms/torch_programs.py`).
"""

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from programs import generator, steps
from programs.calls import MAKERS
from programs.layouts import Placed, Wrong
from programs.oracle import numbers, reduced
from programs.runner import Failed, Rank
from programs.shortest import shortest

PROGRAMS = {2: 60, 3: 28, 4: 12}
# Limit on the tries to leave out steps of a failing program.
TRIES_MAX = 30


def run(
    folder: str,
    seed: int,
    indexes: list[int],
    keep: list[int] | None = None,
    fault: bool = False,
) -> int:
    """Return the number of right programs; with a `fault`, rank 1 sometimes has a wrong bit."""
    rank = Rank(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), folder)
    if fault and rank.rank == 1:
        make = MAKERS["reduce"]

        def wrong(call: steps.Call, *rest: Any) -> Any:
            found = make(call, *rest)
            if call.how == "now" and call.root == 1:
                rest[2][0].view(-1)[-1:].add_(1)
            return found

        MAKERS["reduce"] = wrong
    for index in indexes:
        rank.run(seed, index, keep)
    dist.destroy_process_group()
    return len(indexes)


def failure(outcome: Any) -> BaseException | None:
    """Return the most informative failure: of wrong data, or else the first one."""
    if all(status == 0 for status in outcome.statuses):
        return None
    raised = [rank for rank, status in enumerate(outcome.statuses) if status == 1]
    # A program beyond its time limit also ends the process with 1.
    told = [rank for rank in raised if (outcome.folder / f"result{rank}").exists()]
    errors = [outcome.error(rank) for rank in told]
    failed = [error for error in errors if isinstance(error, Failed)]
    if not failed:
        return AssertionError(f"ended with {outcome.statuses}:\n{outcome.logs()}")
    return min(failed, key=lambda error: (error.kind != "Wrong", error.at_s))


def outcome(
    ranks: Any, folder: Path, count: int, indexes: list[int], **arguments: Any
) -> BaseException | None:
    """Run programs in one job; return their failure."""
    stores = folder / f"stores{ranks.started}"
    stores.mkdir()
    given = {"folder": str(stores), "seed": ranks.seed, "indexes": indexes, **arguments}
    return failure(ranks(run, count, None, **given))


@pytest.mark.parametrize("count", PROGRAMS)
def test_random_programs_are_right(ranks: Any, tmp_path: Path, count: int) -> None:
    only = os.environ.get("TEST_PROGRAM")
    indexes = list(range(PROGRAMS[count])) if only is None else [int(only)]
    error = outcome(ranks, tmp_path, count, indexes)
    if error is None:
        return
    text = f"TEST_SEED={ranks.seed}: {error}"
    if isinstance(error, Failed):
        index = error.index
        drawn = generator.drawn(ranks.seed, index, count)

        def fails(keep: list[int]) -> bool:
            return outcome(ranks, tmp_path, count, [index], keep=keep) is not None

        kept = list(range(len(drawn)))
        if fails(kept):
            kept = shortest(kept, fails, TRIES_MAX)
        lines = "\n".join(f"{number}: {drawn[number]}" for number in kept)
        text += f"\nTEST_PROGRAM={index} on {count} ranks, as short as it fails:\n{lines}"
    pytest.fail(text)


def test_a_wrong_bit_of_one_rank_fails_a_program(ranks: Any, tmp_path: Path) -> None:
    # One in some hundred programs has such a call.
    index, number = next(
        (index, number)
        for index in itertools.count()
        for number, step in enumerate(generator.drawn(ranks.seed, index, 2))
        if isinstance(step, steps.Call)
        and (step.name, step.how, step.root, step.group) == ("reduce", "now", 1, 0)
        and step.layouts == ("flat",)
        and step.dtype in ("int32", "int64", "float32", "float64")
        and step.counts[0] > 0
    )
    error = outcome(ranks, tmp_path, 2, [index], keep=[number], fault=True)
    assert isinstance(error, Failed) and error.kind == "Wrong", error


def test_programs_contain_everything() -> None:
    every = frozenset(generator.FEATURES)
    drawn = [step for index in range(600) for step in generator.drawn(1, index, 3, features=every)]
    kinds = {type(step) for step in drawn}
    assert kinds == set(steps.Step.__args__)
    calls = [step for step in drawn if isinstance(step, steps.Call)]
    assert {call.name for call in calls} == set(steps.FORMS) == set(MAKERS)
    assert {call.how for call in calls} == {"now", *generator.HOWS}
    assert {call.mode for call in calls} == {"", "elsewhere", *generator.MODES}
    layouts = {layout for call in calls for layout in call.layouts}
    assert layouts == {*generator.LAYOUTS, "scalar", "negative", "graded", "conjugate"}
    assert {0, 1} < {count for call in calls for count in call.counts}


@pytest.mark.parametrize("layout", ["flat", "strided", "column", "transposed", "negative"])
def test_wrong_elements_and_bytes_beside_them_are_found(layout: str) -> None:
    values = numbers("float32", 12, 3)
    placed = Placed(layout, "float32", 12, values)
    placed.check(None)
    placed.check(values)
    placed.tensor.view(-1)[5:6].add_(1) if layout == "flat" else placed.tensor.add_(1)
    with pytest.raises(Wrong):
        placed.check(values)
    beside = Placed(layout, "float32", 12, values)
    beside._memory[-1 if layout != "negative" else 0] ^= 1
    with pytest.raises(Wrong):
        beside.check(values)


@pytest.mark.parametrize(
    ("op", "due"),
    [("SUM", -3), ("PRODUCT", 14), ("MIN", -7), ("MAX", 6), ("AVG", -1), ("BOR", -1), ("BAND", 0)],
)
def test_reductions_are_those_of_their_definitions(op: str, due: int) -> None:
    inputs = [torch.tensor([each]) for each in ((-7, -2, 6) if op != "PRODUCT" else (-7, -2, 1))]
    if op == "BAND":
        inputs = [torch.tensor([each]) for each in (6, 1, 7)]
    assert reduced("int64", op, 1.0, inputs).tolist() == [due]


def test_the_shortest_form_keeps_what_a_failure_needs() -> None:
    items = list(range(40))
    assert shortest(items, lambda kept: {7, 31} <= set(kept), 1000) == [7, 31]
    assert shortest(items, lambda kept: 39 in kept, 1000) == [39]
    assert len(shortest(items, lambda kept: len(kept) > 9, 3)) < 40
