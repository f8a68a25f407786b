"""Errors and reports when ranks are missing, hang, make different calls or end with an error."""

import logging
import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

import ringfold
import ringfold.torch

# Longer than any step here.
WATCHDOG_S = 300.0


def tried(*arguments: Any, **named: Any) -> Any:
    """Return the text and missing ranks of a failed monitored barrier; None if all ranks came."""
    try:
        ringfold.torch.monitored_barrier(*arguments, **named)
    except ringfold.torch.MonitoredBarrierError as error:
        return str(error), error.missing
    return None


REACHED = (
    "Rank {0} successfully reached monitoredBarrier, "
    "but received errors while waiting for send/recv from rank 0"
)


def miss_barriers() -> Any:
    rank = dist.get_rank()
    found = [tried(timeout=10.0), tried(None, timedelta(seconds=10), True)]
    if rank != 1:
        found.append(tried(timeout=0.2))
    dist.barrier()
    if rank == 1:
        found.append(tried(timeout=0.2))
    found.append(tried(timeout=0.2, wait_all_ranks=True) if rank == 0 else None)
    dist.barrier()
    found.append(None if rank == 0 else tried(timeout=0.2))
    # All ranks are in step again, and the group is unchanged.
    found.append(tried())
    x = torch.ones(1)
    dist.all_reduce(x)
    return found, x.item(), dist.distributed_c10d._get_default_store().num_keys()


def test_a_monitored_barrier_names_who_is_missing_and_harms_nothing(ranks: Any) -> None:
    first, second, third = (found for found, *_ in ranks(miss_barriers, 3, "ringfold").results())
    for found in (first, second, third):
        assert found[0] is found[1] is found[5] is None
    assert first[2] == ("[Rank 0]: Rank 1 failed to pass monitoredBarrier in 200 ms", [1])
    assert first[3] == ("[Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 200 ms", [1, 2])
    # Rank 1 comes after the barrier has failed, and gets its error.
    for rank, found in ((1, second), (2, third)):
        assert REACHED.format(rank) in found[2][0] and found[2][1] == [1]
        assert REACHED.format(rank) in found[4][0] and found[4][1] == [1, 2]


def known_keys(store: Any) -> int:
    # A FileStore counts the keys that it has read, and reads more when asked for a key.
    store.check(["a key that is never set"])
    return int(store.num_keys())


BARRIERS = 20


def repeat_barriers() -> Any:
    store = dist.distributed_c10d._get_default_store()
    ringfold.torch.monitored_barrier()
    dist.barrier()
    before = known_keys(store)
    for _ in range(BARRIERS):
        ringfold.torch.monitored_barrier(timeout=10.0)
    dist.barrier()
    return known_keys(store) - before


def test_monitored_barriers_leave_nothing_in_the_store(ranks: Any) -> None:
    # Keys left by one barrier would be left by all; other uses of the store leave or delete one or
    # two keys.
    assert max(ranks(repeat_barriers, 2, "ringfold").results()) < BARRIERS


def miss_a_barrier_after_death() -> Any:
    """Find the missing ranks although the group has failed."""
    with pytest.raises(ringfold.MismatchError):
        dist.all_reduce(torch.ones(1 + dist.get_rank()))
    whole = tried(timeout=10.0)
    return whole, tried(timeout=0) if dist.get_rank() == 0 else None


def test_a_monitored_barrier_works_in_a_dead_group(ranks: Any) -> None:
    (whole, none), (others, _) = ranks(miss_a_barrier_after_death, 2, "ringfold").results()
    assert whole is others is None and "Rank 0 timed out in monitoredBarrier" in none[0]


def miss_a_barrier_of_a_group() -> Any:
    group = dist.new_group([0, 2])
    if dist.get_rank() == 1:
        return tried(group)
    return tried(group, timeout=0.2) if dist.get_rank() == 0 else None


def test_a_monitored_barrier_of_a_group_counts_its_ranks(ranks: Any) -> None:
    outcome = ranks(miss_a_barrier_of_a_group, 3, "ringfold")
    assert outcome.results() == [
        ("[Rank 0]: Rank 1 failed to pass monitoredBarrier in 200 ms", [1]),
        None,
        None,
    ]


def wait_for_others(folder: str) -> Any:
    """Wait on rank 0 for two warnings, while rank 1 is in no call and rank 2 in a receive."""
    seen: list[str] = []
    done = Path(folder) / "warned"

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())
            if dist.get_rank() == 0 and len(seen) == 2:
                done.touch()

    logging.getLogger("ringfold").addHandler(Handler())
    rank = dist.get_rank()
    if rank == 1:
        while not done.exists():
            time.sleep(0.01)
        dist.send(torch.ones(1), 2)
    if rank == 2:
        dist.recv(torch.ones(1), 1)
    dist.all_reduce(torch.ones(4, 3))
    return seen


def test_a_stalled_call_is_reported_with_those_who_are_awaited(ranks: Any, tmp_path: Path) -> None:
    variables = {"RINGFOLD_STALL_SECONDS": "0.3"}
    first, second, third = ranks(
        wait_for_others, 3, "ringfold", folder=str(tmp_path), variables=variables
    ).results()
    for warning in first[:2]:
        assert warning.startswith(
            "[rank 0] all_reduce(SUM) of torch.float32 [4, 3], collective 1 of group `0` "
            "(default_pg)"
        )
        assert "waiting for rank 1 (in no call, 1 behind), rank 2 (in " in warning
    assert any("recv from rank 1 of torch.float32 [1], message 1" in warning for warning in third)
    assert not any("recv" in warning for warning in second)


@pytest.mark.parametrize(
    "variables",
    [
        {"RINGFOLD_STALL_SECONDS": "0"},
        {"RINGFOLD_FR_BUFFER_SIZE": "0", "RINGFOLD_STALL_SECONDS": "0.05"},
    ],
)
def test_nothing_is_reported_where_that_is_turned_off(
    ranks: Any, variables: dict[str, str]
) -> None:
    assert ranks(wait_a_moment, 2, "ringfold", variables=variables).results() == [[], []]


def wait_a_moment() -> Any:
    seen: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: seen.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("ringfold").addHandler(handler)
    if dist.get_rank() == 1:
        time.sleep(0.3)
    dist.barrier()
    return seen


def threads_after() -> Any:
    """Return whether the watching thread runs: in the group, in a forked child, and afterwards."""
    import threading

    def is_watched() -> bool:
        return any(thread.name == "ringfold-watch" for thread in threading.enumerate())

    during = is_watched()
    pid = os.fork()
    if pid == 0:
        os._exit(int(is_watched()))
    _, status = os.waitpid(pid, 0)
    dist.destroy_process_group()
    deadline = time.monotonic() + WATCHDOG_S
    while is_watched() and time.monotonic() < deadline:
        time.sleep(0.01)
    return during, os.waitstatus_to_exitcode(status), is_watched()


def test_the_thread_that_watches_ends_with_the_groups(ranks: Any) -> None:
    assert ranks(threads_after, 2, "ringfold").results() == [(True, 0, False)] * 2


def differ_under_detail(way: str, folder: str) -> Any:
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    dist.set_debug_level_from_env()
    rank = int(os.environ["RANK"])
    dist.init_process_group(
        "ringfold", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    x = torch.ones(3, 2 + rank)
    with pytest.raises(RuntimeError) as caught:
        if way == "sync":
            dist.all_reduce(x)
        elif way == "async":
            dist.all_reduce(x, async_op=True).wait()
        elif way == "functional":
            functional.wait_tensor(functional.all_reduce(x, "sum", dist.group.WORLD))
        else:
            model = DistributedDataParallel(torch.nn.Linear(3, 2))
            loss = model(torch.ones(1, 3)).sum()
            dist.all_reduce(x) if rank == 1 else loss.backward()
    dist.destroy_process_group()
    return str(caught.value)


@pytest.mark.parametrize("way", ["sync", "async", "functional", "ddp"])
def test_a_mismatch_names_both_calls_and_the_shapes_of_ones_own(
    ranks: Any, tmp_path: Path, way: str
) -> None:
    for rank, text in enumerate(
        ranks(differ_under_detail, 2, None, way=way, folder=str(tmp_path)).results()
    ):
        assert "are in different calls: rank" in text, text
        for words in (
            "all_reduce of 9 float32 sum",
            f"all_reduce of {8 if way == 'ddp' else 6} float32 sum",
        ):
            assert words in text
        shape = [8] if way == "ddp" and rank == 0 else [3, 2 + rank]
        assert f"rank {rank} was in all_reduce(SUM) of torch.float32 {shape}" in text, text


PROGRAM = """
import os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
rank = int(sys.argv[1])
dist.init_process_group("ringfold", init_method="file://" + sys.argv[2], rank=rank, world_size=3)
dist.all_reduce(torch.ones(1))
if rank == 1:
    raise ValueError("no such file: weights")
if sys.argv[3] == "ddp":
    DistributedDataParallel(torch.nn.Linear(2, 2))(torch.ones(1, 2)).sum().backward()
try:
    dist.all_reduce(torch.ones(1))
finally:
    if sys.argv[3] == "destroy":
        dist.destroy_process_group()
"""


@pytest.mark.parametrize("how", ["ddp", "exit", pytest.param("destroy", marks=pytest.mark.deep)])
def test_an_uncaught_exception_ends_all_ranks_with_its_text(tmp_path: Path, how: str) -> None:
    programs = [
        subprocess.Popen(
            [
                sys.executable,
                "-W",
                "ignore",
                "-c",
                PROGRAM,
                str(rank),
                str(tmp_path / "store"),
                how,
            ],
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for rank in range(3)
    ]
    try:
        printed = [program.communicate(timeout=WATCHDOG_S)[1] for program in programs]
    finally:
        for program in programs:
            program.kill()
            program.wait()
    assert [program.returncode for program in programs] == [1, 1, 1], printed
    assert printed[1].rstrip().endswith("ValueError: no such file: weights")
    for rank in (0, 2):
        assert "aborted by rank 1: ValueError: no such file: weights" in printed[rank], printed[
            rank
        ]
