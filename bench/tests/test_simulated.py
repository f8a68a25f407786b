"""bench/simulated.py compares predictions with measurements."""

import csv
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import simulated

WATCHDOG_S = 300.0
PROGRAM = simulated.ROOT / "target/release/ringfold"

SWEEP = """asked,algorithm,size_bytes,median_us
default,ring,8,1.0
way,ring,8,10.0
way,ring,8,12.0
way,ring,8,11.0
way,tree,8,20.0
way,tree,64,40.0
"""
SIMULATION = """algorithm,bytes,time_us
ring,8,11.0
tree,8,22.0
tree,64,30.0
ring,64,5.0
"""


def rows() -> list[simulated.Row]:
    """Return the rows of the measurements and predictions above."""
    times = simulated.measured(io.StringIO(SWEEP))
    return simulated.joined(times, simulated.predicted(io.StringIO(SIMULATION)))


def test_the_median_of_the_rounds_is_compared_and_the_default_is_not() -> None:
    """The default's choice is one of the ways, measured a second time."""
    first = rows()[0]
    assert (first["algorithm"], first["measured_us"], first["spread"]) == ("ring", 11.0, 0.182)
    assert [row["bytes"] for row in rows()] == [8, 8, 64]


def test_the_worst_error_is_named() -> None:
    """The sign of an error does not matter."""
    ring, tree = simulated.summary(rows())
    assert ring[:2] == ("ring", 0.0)
    assert tree[0] == "tree"
    assert tree[1] == pytest.approx((0.1 + 0.25) / 2)
    assert tree[2]["bytes"] == 64
    assert simulated.error(tree[2]) == pytest.approx(-0.25)


def test_a_shape_is_hosts_by_ranks() -> None:
    """Shapes are written as in the tables."""
    assert simulated.shape("2x4") == (2, 4)


def compare(folder: Path, *flags: str) -> list[dict[str, str]]:
    """Return the rows that the script writes into a folder."""
    words = [sys.executable, simulated.__file__, "--program", str(PROGRAM), "--folder", str(folder)]
    done = subprocess.run(
        [*words, "--shapes", "2x1,2x2", "--largest", "32K", "--rounds", "1", *flags],
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("# leader: median error") == 1
    with (folder / "simulated.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.deep
@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc"))),
    reason="network namespaces need root, ip and tc",
)
@pytest.mark.skipif(not PROGRAM.exists(), reason="needs `cargo build --release -p ringfold-cli`")
def test_links_are_calibrated_ways_swept_and_both_simulated(tmp_path: Path) -> None:
    """The whole chain runs between namespaces, from the first message to the table."""
    rows = compare(tmp_path)
    sizes = [8 * 4**step for step in range(7)]
    flat, all_ways = simulated.FLAT, [*simulated.TWO_LEVELS, *simulated.FLAT]
    expected = [("1", name, size) for name in sorted(flat) for size in sizes]
    expected += [("2", name, size) for name in sorted(all_ways) for size in sizes]
    found = [(row["ranks_per_host"], row["algorithm"], int(row["bytes"])) for row in rows]
    assert found == expected
    for row in rows:
        assert float(row["measured_us"]) > 0 and float(row["predicted_us"]) > 0, row
    # Measurements in the folder are predicted a second time, with the same result.
    assert compare(tmp_path, "--no-measuring") == rows
