"""Run PyTorch's own test suite against ringfold, and test the evaluation of its results."""

import functools
import importlib.util
import itertools
import re
import time
from pathlib import Path
from typing import Any

import pytest

import conformance
from conformance import ALIASES, WORLDS, Run
from forks import Ranks
from suite_run import FAIL, PASS, SKIP, TIMEOUT, Result, judge

# The 115 tests that gloo passes over all its runs, and four with uneven blocks, which gloo does not
# support.
DISTINCT_TESTS = 119
# The shortest run, which is part of every check. The other runs take minutes; some tests are only
# in those.
ALWAYS = {("mpi", 2)}
# torch's tests do not account for pauses, so a machine under load gets more time.
LIMIT_S = 120.0


# Tests that run in gloo's place in every check; the others take minutes.
IN_PLACE = (
    "^test_(all_reduce_sum|all_gather_object_default_pg|monitored_barrier_gloo|"
    "DistributedDataParallelCPU|all_to_all_full_group)$"
)


@functools.cache
def results(alias: str, world: int, replaced: bool = False) -> dict[str, Result]:
    backend = "gloo" if replaced else "ringfold"
    run = Run(backend, alias, world, "", LIMIT_S, preload=("ringfold.torch",), replaced=replaced)
    return run.results()


needs_backend = pytest.mark.skipif(
    importlib.util.find_spec("ringfold.torch.backend") is None,
    reason="ringfold has no backend for torch yet",
)


def runs() -> list[Any]:
    """Return all runs; most are marked for `check.sh --deep`."""
    every = itertools.product(ALIASES, WORLDS)
    return [pytest.param(*run, marks=[] if run in ALWAYS else [pytest.mark.deep]) for run in every]


@needs_backend
@pytest.mark.parametrize(("alias", "world"), runs())
def test_no_test_of_the_suite_fails(alias: str, world: int) -> None:
    print(conformance.summary(results(alias, world)))
    assert conformance.failed(results(alias, world)) == {}


@pytest.mark.deep
@needs_backend
@pytest.mark.parametrize(("alias", "world"), list(itertools.product(ALIASES, WORLDS)))
def test_no_test_of_the_suite_fails_in_gloos_place(alias: str, world: int) -> None:
    print(conformance.summary(results(alias, world, replaced=True)))
    assert conformance.failed(results(alias, world, replaced=True)) == {}


@needs_backend
def test_tests_of_the_suite_pass_in_gloos_place() -> None:
    found = {
        alias: Run("gloo", alias, 2, IN_PLACE, LIMIT_S, replaced=True).results()
        for alias in ALIASES
    }
    assert all(conformance.failed(each) == {} for each in found.values())
    passed = conformance.passed(found.values())
    assert passed >= {
        "test_DistributedDataParallelCPU",
        "test_all_gather_object_default_pg",
        "test_all_reduce_sum",
        "test_monitored_barrier_gloo",
        # gloo itself fails as mpi.
        "test_all_to_all_full_group",
    }


@pytest.mark.deep
@needs_backend
def test_more_tests_pass_than_for_gloo() -> None:
    passed = conformance.passed(results(alias, world) for alias in ALIASES for world in WORLDS)
    assert len(passed) >= DISTINCT_TESTS


def test_verdicts_are_told_apart() -> None:
    # A test that passes, one for GPUs, one whose decorator requires another backend, and one that
    # gloo does not support.
    pattern = "^test_(reduce_sum|all_reduce_sum_cuda|send_recv_nccl|all_to_all_full_group)$"
    found = Run("gloo", "mpi", 2, pattern).results(shown=False)
    assert {name: result.verdict for name, result in found.items()} == {
        "test_all_reduce_sum_cuda": SKIP,
        "test_all_to_all_full_group": FAIL,
        "test_reduce_sum": PASS,
        "test_send_recv_nccl": SKIP,
    }
    # Before torch 2.13: Backend gloo does not support alltoall.
    assert re.match(
        "RuntimeError: .*gloo.*alltoall", found["test_all_to_all_full_group"].reason, re.IGNORECASE
    )
    assert "NCCL Send Recv Only" in found["test_send_recv_nccl"].reason


def end_as_told(rank: int) -> int:
    print("RuntimeError: rank 2 has had enough" if rank == 2 else "all is well")
    if rank == 3:
        time.sleep(1000)
    return (0, 73, 10)[rank]


@pytest.mark.parametrize(
    ("ends", "verdict", "reason"),
    [
        ([0, 0], PASS, ""),
        ([0, 1], SKIP, "too few ranks"),
        ([1, 3], SKIP, "too few ranks"),
        ([1, 2], FAIL, "RuntimeError: rank 2 has had enough"),
        ([2, 3], FAIL, "RuntimeError: rank 2 has had enough"),
        ([0, 3], TIMEOUT, "1 of 2 ranks had ended"),
    ],
)
def test_verdicts_follow_from_how_ranks_end(
    ends: list[int], verdict: str, reason: str, tmp_path: Path
) -> None:
    # Only a rank that never ends may be killed, however busy the machine is.
    limit_s, grace_s = (1.0, 0.1) if 3 in ends else (60.0, 60.0)
    ranks = Ranks(
        lambda rank: end_as_told(ends[rank]), len(ends), tmp_path / "log", limit_s, grace_s
    )
    ranks.wait()
    assert judge(ranks, {73: "too few ranks"}) == (verdict, reason)
