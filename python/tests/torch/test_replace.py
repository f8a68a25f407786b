"""RINGFOLD_TORCH_REPLACE=gloo: programs that ask for gloo get ringfold, on all ranks or on none."""

import datetime
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import init_device_mesh

import ringfold.torch
from ringfold.errors import BootstrapError
from ringfold.torch import backend as of_ringfold

REPLACE = "RINGFOLD_TORCH_REPLACE"
WATCHDOG_S = 120.0
PLAIN, REPLACED = "ProcessGroup", "RingfoldProcessGroup"


def join(folder: str, backend: str | None, replacing: list[int], timeout_s: float = 60.0) -> Any:
    """Make the default group; the variable is set on the ranks in `replacing`."""
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank in replacing:
        os.environ[REPLACE] = "gloo"
        ringfold.torch.register_backend()
    dist.init_process_group(
        backend,
        store=dist.FileStore(f"{folder}/replaced", count),
        rank=rank,
        world_size=count,
        timeout=datetime.timedelta(seconds=timeout_s),
    )
    return distributed_c10d._get_default_group()


def answers(group: Any) -> list[Any]:
    """Return what a program learns of a group's backend, and a sum."""
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    return [dist.get_backend(group), dist.get_backend_config(group), tensor.tolist()]


def ask(folder: str, backend: str | None, replacing: list[int]) -> Any:
    world = join(folder, backend, replacing)
    groups = [world, dist.new_group(), dist.new_group([1, 0], backend="gloo")]
    groups.append(init_device_mesh("cpu", (2,)).get_group())
    found = [answers(group) for group in groups]
    dist.destroy_process_group()
    kinds = {(type(group).__name__, group.name()) for group in groups}
    # torch's own groups like `cpu:gloo` have no name.
    return kinds - {(PLAIN, "undefined")}, found


@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo", None])
def test_groups_answer_as_those_of_gloo(ranks: Any, tmp_path: Path, backend: str | None) -> None:
    plain = ranks(ask, 2, None, folder=str(tmp_path), backend=backend, replacing=[]).results()
    (tmp_path / "replaced").unlink(missing_ok=True)
    replaced = ranks(ask, 2, None, folder=str(tmp_path), backend=backend, replacing=[0, 1])
    assert plain[0][0] == {(PLAIN, "gloo")}
    assert replaced.results() == [({(REPLACED, "gloo")}, found) for _, found in plain]
    assert replaced.logs().count("ringfold serves the groups that ask for gloo") == 1


def use(folder: str) -> Any:
    """Make calls that torch has for gloo only."""
    world = join(folder, "gloo", [0, 1, 2])
    dist.monitored_barrier()
    part = dist.new_group([0, 2], backend=dist.Backend.GLOO)
    other = dist.new_group([1], backend="ringfold")
    split = world.split_group([0, 1], datetime.timedelta(seconds=60), None, "half", "two of three")
    return [
        dist.get_backend(part) if dist.get_rank() != 1 else dist.get_backend(other),
        split.name() if split else None,
    ]


def test_torch_sees_gloo_in_calls_that_require_it(ranks: Any, tmp_path: Path) -> None:
    found = ranks(use, 3, None, folder=str(tmp_path)).results()
    assert found == [["gloo", "gloo"], ["ringfold", "gloo"], ["gloo", None]]


def sort_of_group(folder: str, backend: str, replacing: list[int]) -> Any:
    group = join(folder, backend, replacing)
    found = type(group).__name__, answers(group)
    dist.destroy_process_group()
    return found


@pytest.mark.parametrize("replacing", [[0], [1], [2], [0, 2], [0, 1], [1, 2]])
def test_one_rank_without_the_variable_keeps_gloo_on_all(
    ranks: Any, tmp_path: Path, replacing: list[int]
) -> None:
    outcome = ranks(
        sort_of_group, 3, None, folder=str(tmp_path), backend="gloo", replacing=replacing
    )
    due = ["gloo", "cpu:gloo,cuda:gloo", [3.0] * 3]
    assert outcome.results() == [(PLAIN, due)] * 3
    missing = [rank for rank in range(3) if rank not in replacing]
    assert outcome.logs().count(f"not so on its ranks {missing}") == len(replacing)


def test_a_rank_that_does_not_come_is_named(ranks: Any, tmp_path: Path) -> None:
    outcome = ranks(wait_alone, 2, None, folder=str(tmp_path))
    error = outcome.error(0)
    assert isinstance(error, BootstrapError)
    assert str(error).startswith("rank 1 of a group of 2 ranks") and REPLACE in str(error)


def wait_alone(folder: str) -> None:
    if os.environ["RANK"] == "0":
        join(folder, "gloo", [0], timeout_s=2.0)


def part_of_group(folder: str) -> Any:
    """Make a group of which another backend serves a device."""
    group = join(folder, "cpu:gloo,cuda:fake", [0, 1])
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    part = group._get_backend(torch.device("cpu"))
    return type(part).__name__, part.name(), dist.get_backend(), float(tensor)


def test_a_device_of_gloo_beside_another_backend_is_replaced(ranks: Any, tmp_path: Path) -> None:
    outcome = ranks(part_of_group, 2, None, folder=str(tmp_path))
    kind = "RingfoldBackend" if of_ringfold.can_derive_backends() else "ProcessGroupGloo"
    assert outcome.results() == [(kind, "gloo", "cpu:gloo,cuda:fake", 2.0)] * 2
    if kind == "ProcessGroupGloo":
        assert outcome.logs().count("ringfold needs torch 2.14") == 2


PROGRAM = """
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
print(type(dist.group.WORLD).__name__, dist.get_backend())
"""


def run(value: str | None) -> str:
    """Run a program of one rank, in which nothing names ringfold."""
    variables = {name: text for name, text in os.environ.items() if name != REPLACE}
    variables |= {} if value is None else {REPLACE: value}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S,
        env=variables,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_the_variable_suffices_and_is_off_by_default() -> None:
    assert run("gloo").splitlines()[0] == f"{REPLACED} gloo"
    assert run(None).splitlines() == [f"{PLAIN} gloo"]


def test_a_value_that_has_no_effect_is_reported() -> None:
    output = run("nccl")
    assert output.splitlines()[0] == f"{PLAIN} gloo"
    assert f"{REPLACE}=`nccl`: must be gloo" in output
