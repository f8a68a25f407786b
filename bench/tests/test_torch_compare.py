"""The arithmetic of bench/torch_compare.py and bench/checkpoint.py."""

import pytest

import checkpoint
import torch_compare
from comparison import training
from comparison.summary import Case, Times

SMALL, LARGE = Case(2, 8, "in"), Case(2, 64, "in")


def test_blocks_are_found_among_other_lines() -> None:
    output = (
        'a warning\n{"library": "gloo", "bytes": 8, "times_us": [3.0, 1.0]}\n\n'
        '{"library": "gloo", "bytes": 8, "times_us": [2.0]}\n'
    )
    taken: dict[tuple[str, Case], Times] = {}
    training.add(taken, 2, training.blocks(output))
    assert taken == {("gloo", SMALL): Times([3.0], [[3.0, 1.0], [2.0]])}


def test_the_overhead_is_that_of_neighbouring_blocks() -> None:
    # The machine was slower at the second block, which must not count as overhead.
    taken = {
        ("ringfold", SMALL): Times([9.0], [[5.0, 5.0, 6.0], [15.0], [5.5]]),
        ("native", SMALL): Times([9.0], [[1.0, 1.0, 1.0], [10.0], [2.0]]),
        ("gloo", SMALL): Times([9.0], [[90.0], [90.0], [90.0]]),
        ("ringfold", LARGE): Times([9.0], [[5.0]]),
    }
    (found,) = training.overheads(taken)
    assert (found.ranks, found.bytes, found.torch_us, found.native_us) == (2, 8, 5.5, 1.0)
    assert (found.overhead_us, found.low_us, found.high_us) == (4.0, 3.5, 5.0)
    assert "4.00" in torch_compare.overhead_table([found])


def test_communication_is_the_step_beyond_that_of_one_rank() -> None:
    times = {
        "gloo": [[30e3, 32e3], [34e3]],
        "ringfold": [[14e3], [15e3]],
        "apart": [[12e3], [12e3]],
        "alone": [[10e3], [10e3]],
    }
    lines = [{"way": way, "times_us": block} for way, blocks in times.items() for block in blocks]
    rows = {row.way: row for row in training.steps(lines)}
    gloo, own = rows["gloo"], rows["ringfold"]
    assert (gloo.steps, gloo.step_ms, gloo.quickest_ms, gloo.slowest_ms) == (3, 32.0, 31.0, 34.0)
    assert (gloo.communication_ms, gloo.of_gloo, gloo.beyond_apart_ms) == (22.0, 1.0, 20.0)
    assert own.communication_ms == 4.5
    assert own.of_gloo == pytest.approx(4.5 / 22, rel=1e-3)
    assert (own.beyond_apart_ms, own.of_gloo_beyond_apart) == (2.5, 0.125)
    assert rows["alone"].communication_ms == 0
    assert len(torch_compare.step_table(list(rows.values())).splitlines()) == 5


def test_large_sizes_have_fewer_calls_a_block() -> None:
    counts = [torch_compare.iterations(size) for size in (0, 8, 1 << 20, 16 << 20, 1 << 30)]
    assert counts == [100, 100, 64, 4, 3]


def test_a_row_has_the_median_of_all_rounds_and_the_ratio_to_ringfold() -> None:
    lines = [
        {"call": "save", "library": library, "times_us": times}
        for library, times in (("ringfold", [1.0, 3.0]), ("gloo", [8.0]), ("ringfold", [2.0]))
    ]
    own, other = checkpoint.rows_of(lines, {"ranks": 2})
    assert (own["ranks"], own["rounds"], own["median_us"], own["ringfold_ratio"]) == (2, 2, 2.0, 1)
    assert (own["quickest_round_us"], own["slowest_round_us"]) == (2.0, 2.0)
    assert (other["library"], other["median_us"], other["ringfold_ratio"]) == ("gloo", 8.0, 0.25)
