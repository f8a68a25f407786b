"""How bench/simulated.py compares predictions with measurements."""

import io

import pytest
import simulated

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
    """What was measured and predicted above."""
    times = simulated.measured(io.StringIO(SWEEP))
    return simulated.joined(times, simulated.predicted(io.StringIO(SIMULATION)))


def test_the_median_of_the_rounds_is_compared_and_the_default_is_not() -> None:
    """The default's choice is one of the ways, measured once more."""
    first = rows()[0]
    assert (first["algorithm"], first["measured_us"], first["spread"]) == ("ring", 11.0, 0.182)
    assert [row["bytes"] for row in rows()] == [8, 8, 64]


def test_the_worst_error_is_named() -> None:
    """Whichever sign it has."""
    ring, tree = simulated.summary(rows())
    assert ring[:2] == ("ring", 0.0)
    assert tree[0] == "tree"
    assert tree[1] == pytest.approx((0.1 + 0.25) / 2)
    assert tree[2]["bytes"] == 64
    assert simulated.error(tree[2]) == pytest.approx(-0.25)


def test_a_shape_is_hosts_by_ranks() -> None:
    """As in the tables."""
    assert simulated.shape("2x4") == (2, 4)
