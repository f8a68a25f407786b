"""bench/tuned.py judges the tuner's choices."""

from pathlib import Path

import tuned

HEADING = "size_bytes,algorithm,protocol,channels,asked,round,median_us\n"


def sweep(folder: Path, rows: list[tuple[str, str, list[float]]]) -> dict[int, tuned.Point]:
    """Return a sweep of one size, from the requester, algorithm and times by round of each row."""
    lines = [
        f"1024,{algorithm},simple,-1,{asked},{turn},{time}\n"
        for asked, algorithm, times in rows
        for turn, time in enumerate(times)
    ]
    path = folder / "sweep.csv"
    path.write_text(HEADING + "".join(lines))
    return tuned.read(path)


def test_a_ratio_is_the_picks_time_over_the_best_ways(tmp_path: Path) -> None:
    """Rounds are compared in pairs, so that differences between rounds do not count."""
    ring, tree = [10.0, 20.0, 10.0, 40.0], [20.0, 40.0, 20.0, 80.0]
    points = sweep(
        tmp_path, [("default", "tree", tree), ("way", "tree", tree), ("way", "ring", ring)]
    )
    assert points[1024].pick == "tree/simple"
    assert tuned.ratio(points[1024]) == (2.0, "ring/simple")


def test_luck_in_one_half_of_the_rounds_is_no_better_way(tmp_path: Path) -> None:
    """A way that was fast by chance is judged in the other rounds.

    The minimum of all times would make the choice look bad.
    """
    pick = [10.0] * 4
    lucky, unlucky = [5.0, 20.0, 5.0, 20.0], [20.0, 5.0, 20.0, 5.0]
    points = sweep(
        tmp_path, [("default", "direct", pick), ("way", "ring", lucky), ("way", "tree", unlucky)]
    )
    assert tuned.ratio(points[1024])[0] == 0.5


def test_ways_that_were_given_up_do_not_win(tmp_path: Path) -> None:
    """A way with a single round has no second half of rounds in which to judge it."""
    points = sweep(
        tmp_path,
        [("default", "ring", [10.0] * 4), ("way", "ring", [10.0] * 4), ("way", "flat", [1.0])],
    )
    assert tuned.ratio(points[1024]) == (1.0, "ring/simple")
