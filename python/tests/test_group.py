"""Grouped calls, and the tuner's arguments."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringfold


def in_a_group(comm: ringfold.Communicator) -> Any:
    xs = [np.full(count, comm.rank + 1.0) for count in (1, 1000, 100_000)]
    with comm.group():
        works = [comm.all_reduce(x, out=x) for x in xs]
        late = comm.all_gather(np.array([comm.rank]), async_=True)
        assert not works[0].done()
        for use in (works[0].wait, works[0].exception):
            with pytest.raises(RuntimeError, match="leave the `with` block"):
                use()
        with pytest.raises(ringfold.InvalidArgumentError), comm.group():
            pass
    assert all(work.done() for work in works)
    return [float(x[-1]) for x in xs], late.wait().ravel().tolist()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_calls_of_a_group_are_carried_out_at_its_end(jobs: Any, transport: str) -> None:
    init = {"transport": transport, "tuning": {"max_channels": 4}}
    assert jobs(in_a_group, 3, init).results() == [([6.0] * 3, [0, 1, 2])] * 3


def in_a_broken_group(comm: ringfold.Communicator) -> Any:
    x = np.ones(3)
    with pytest.raises(ringfold.InvalidArgumentError), comm.group():
        comm.all_reduce(x, out=x)
        comm.broadcast(x, root=7, out=x)
    with pytest.raises(KeyError), comm.group():
        comm.all_reduce(x, out=x)
        raise KeyError
    return comm.all_reduce(x).tolist()


def test_a_group_with_a_wrong_call_starts_none(jobs: Any) -> None:
    assert jobs(in_a_broken_group, 2).results() == [[2.0] * 3] * 2


def sums(comm: ringfold.Communicator) -> Any:
    return [float(comm.all_reduce(np.ones(count))[0]) for count in (1, 5000, 1_000_000)]


def test_the_tuners_arguments_reach_it(jobs: Any, tmp_path: Path) -> None:
    rules = tmp_path / "rules.csv"
    rules.write_text(
        "# two "
        "ranges\nallreduce,0,8191,direct,simple,-1,-1,-1\nallreduce,8192,-1,ring,simple,2,-1,3\n"
    )
    tuning = {
        "tuner_config": str(rules),
        "max_channels": 2,
        "tuner_plugin": "none",
    }
    assert jobs(sums, 3, {"tuning": tuning}).results() == [[3.0] * 3] * 3


def test_a_bad_line_is_told_with_line_and_column(tmp_path: Path) -> None:
    rules = tmp_path / "rules.csv"
    rules.write_text("\nallreduce,0,8191,rng,simple,-1,-1,-1\n")
    with pytest.raises(
        ringfold.InvalidArgumentError,
        match=r"rules\.csv:2:18: `rng` is no algorithm; did you mean `ring`",
    ):
        ringfold.init(tuning={"tuner_config": rules})
    with pytest.raises(ringfold.InvalidArgumentError, match="protocol"):
        ringfold.init(tuning={"protocol": "fast"})


def test_an_unknown_key_of_tuning_is_an_error_that_names_the_nearest() -> None:
    unknown: Any = {"max_chanels": 1}
    with pytest.raises(ringfold.InvalidArgumentError, match="did you mean `max_channels`"):
        ringfold.init(tuning=unknown)
    unknown = {"speed": "high"}
    with pytest.raises(ringfold.InvalidArgumentError, match="use max_channels, protocol"):
        ringfold.init(tuning=unknown)


@pytest.mark.parametrize("wrong", [["max_channels"], "max_channels", 2, 0, False, "", []])
def test_tuning_is_a_mapping(wrong: Any) -> None:
    with pytest.raises(TypeError, match="`tuning` is a mapping"):
        ringfold.init(tuning=wrong)
