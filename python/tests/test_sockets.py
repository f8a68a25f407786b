"""The arguments of `init` that concern sockets."""

from typing import Any

import numpy as np
import pytest

import ringfold


def total(comm: ringfold.Communicator) -> float:
    return float(comm.all_reduce(np.ones(1_000_000, np.float32))[-1])


def test_the_number_of_sockets_reaches_them(jobs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGFOLD_DEBUG", "INFO")
    # An argument takes precedence over the variable.
    monkeypatch.setenv("RINGFOLD_SOCKETS", "1")
    init = {"transport": "tcp", "tuning": {"sockets": 3}}
    job = jobs(total, 2, init)
    assert job.results() == [2.0] * 2
    assert "3 sockets for each channel with ranks [1]" in job.log(0)


def test_too_many_sockets_are_refused(jobs: Any) -> None:
    job = jobs(total, 2, {"transport": "tcp", "tuning": {"sockets": 65}})
    for rank in range(2):
        assert job.status(rank) != 0
        assert "invalid number of sockets 65" in job.log(rank)
