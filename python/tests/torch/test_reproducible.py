"""The example of reproducible training, as real jobs of several sizes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import ringfold
import ringfold.torch

EXAMPLE = Path(__file__).parents[3] / "examples" / "reproducible_ddp.py"
TIMEOUT_S = 300


def test_weights_are_the_same_bits_on_8_4_2_and_1_ranks() -> None:
    environment = os.environ | {"RINGFOLD_REPRODUCIBLE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "ringfold", "run", "--ranks"]
    jobs = [
        subprocess.Popen(
            [*command, str(ranks), "--", sys.executable, str(EXAMPLE)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for ranks in (8, 4, 2, 1)
    ]
    digests = []
    try:
        for job in jobs:
            output, errors = job.communicate(timeout=TIMEOUT_S)
            assert job.returncode == 0, errors
            digests.append(output.split()[-1])
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    assert len(digests[0]) == 64
    assert digests == [digests[0]] * 4


def sums() -> list[bool]:
    """Sums in a reproducible group beside one that is none."""
    group = dist.new_group(pg_options=ringfold.torch.Options(reproducible=True))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    inputs = [torch.randn(4001, generator=torch.Generator().manual_seed(of)) for of in range(ranks)]
    inputs = [10.0**of * each for of, each in enumerate(inputs)]
    whole = inputs[rank].clone()
    dist.all_reduce(whole, group=group)
    parts = inputs[rank].clone()
    for part in parts.split(777):
        dist.all_reduce(part, group=group)
    expected = ringfold.fold(inputs)
    return [whole.equal(expected), parts.equal(expected)]


def test_a_group_may_be_reproducible(ranks: Any) -> None:
    assert ranks(sums, 6, "ringfold").results() == [[True, True]] * 6
