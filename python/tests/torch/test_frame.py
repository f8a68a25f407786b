"""The test frame itself: results, exceptions and crashes of ranks."""

import os
import signal
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist


def add_up(factor: int) -> Any:
    tensor = torch.full((3,), float(dist.get_rank() + 1) * factor)
    dist.all_reduce(tensor)
    return tensor.tolist(), dist.get_world_size(), torch.initial_seed()


@pytest.mark.parametrize("count", [1, 2, 3])
def test_ranks_are_a_process_group_with_one_seed(
    ranks: Any, backend: str, seed: int, count: int
) -> None:
    total = 10.0 * sum(range(1, count + 1))
    assert (
        ranks(add_up, count, backend, factor=10).results() == [([total] * 3, count, seed)] * count
    )


def fall_out() -> str:
    if os.environ["RANK"] == "1":
        raise ZeroDivisionError("nothing by nothing")
    if os.environ["RANK"] == "2":
        os.kill(os.getpid(), signal.SIGKILL)
    return os.environ["GREETING"]


def test_ranks_that_raise_or_die_are_told_from_those_that_return(ranks: Any) -> None:
    outcome = ranks(fall_out, 3, None, variables={"GREETING": "hello"})
    assert outcome.result(0) == "hello"
    assert (
        isinstance(outcome.error(1), ZeroDivisionError) and "nothing by nothing" in outcome.logs()
    )
    assert outcome.statuses == [0, 1, -signal.SIGKILL]
    assert outcome.results(but=(1, 2)) == ["hello"]


def hang(pid_file: str) -> None:
    with open(pid_file, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(1000)


def test_ranks_that_hang_are_killed(ranks: Any, tmp_path: Any) -> None:
    outcome = ranks(hang, 1, None, limit_s=10.0, pid_file=str(tmp_path / "pid"))
    assert outcome.statuses == [None]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
