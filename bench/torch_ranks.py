"""One rank of `bench/torch_compare.py`: times calls of several backends on the same tensors.

Usage: torch_ranks.py PLAN    PLAN is JSON; see `all_reduce` and `train` for its keys. Rank 0 prints
a line of JSON per block.

The backends alternate in one process. Before each call, all ranks store to their input and enter
the same barrier, ringfold's own, both untimed; the slowest rank counts. The first call of a block
does not count: it follows another backend's call and finds none of its own memory cached.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from operators import OPERATORS, Call
from ringfold._native import Request

LINE_FLOATS = 16
FLOAT_BYTES = 4
SETTLING_CALLS = 300
LIBRARIES = ("ringfold", "native", "gloo")


def core() -> Any:
    """Return the core's communicator of the group of all ranks."""
    group: Any = dist.group.WORLD
    return (
        group.communicator
        if hasattr(group, "communicator")
        else group._get_backend(torch.device("cpu")).communicator
    )


def calls(tensor: Any, gloo: Any, loaded: dict[str, Call]) -> dict[str, Callable[[], object]]:
    """Return an all-reduce of the tensor for each library; `loaded` are operators of others."""
    communicator, memory = core(), (tensor.data_ptr(), tensor.nbytes)

    def native() -> None:
        communicator.run(Request.raw("all_reduce", "float32", tensor.numel(), memory, memory))

    return {
        "ringfold": lambda: dist.all_reduce(tensor),
        "native": native,
        "gloo": lambda: dist.all_reduce(tensor, group=gloo),
        **{name: partial(call, tensor) for name, call in loaded.items()},
    }


def block_us(tensor: Any, call: Callable[[], object], iterations: int) -> list[float]:
    """Return every call's time on its slowest rank."""
    communicator, times = core(), []
    for _ in range(iterations + 1):
        tensor[::LINE_FLOATS] = 0
        communicator.run(Request.raw("barrier", "uint8", 0, (0, 0), (0, 0)))
        begin = time.perf_counter()
        call()
        times.append((time.perf_counter() - begin) * 1e6)
    slowest = torch.tensor(times[1:], dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return [round(us, 3) for us in slowest.tolist()]


def all_reduce(plan: dict[str, Any], gloo: Any) -> None:
    """Measure all-reduces.

    The plan has `sizes` in bytes; `iterations` per library and block, by size; `blocks` per
    library, alternating; `libraries`, if not all; `operators`, the files of others by name.
    """
    files: dict[str, str] = plan.get("operators", {})
    loaded = {name: OPERATORS[name](Path(file)) for name, file in files.items()}
    # Waits until the system has found a core for each rank.
    for call in calls(torch.zeros(2), gloo, loaded).values():
        block_us(torch.zeros(2), call, SETTLING_CALLS)
    for size, iterations in zip(plan["sizes"], plan["iterations"], strict=True):
        tensor = torch.zeros(max(size // FLOAT_BYTES, 1))
        wanted = [*plan.get("libraries", LIBRARIES), *loaded]
        every = calls(tensor, gloo, loaded).items()
        named = [(name, call) for name, call in every if name in wanted]
        for _, call in named:
            block_us(tensor, call, 1)
        for block in range(plan["blocks"]):
            begin = block % len(named)
            for name, call in named[begin:] + named[:begin]:
                say(
                    {
                        "library": name,
                        "bytes": tensor.nbytes,
                        "times_us": block_us(tensor, call, iterations),
                    }
                )


def network(width: int, layers: int) -> Any:
    torch.manual_seed(1)
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))


def stepper(model: Any, inputs: Any) -> Callable[[], float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

    def step() -> float:
        begin = time.perf_counter()
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        return (time.perf_counter() - begin) * 1e6

    return step


def train(plan: dict[str, Any], gloo: Any) -> None:
    """Measure training steps on `batch` samples per rank.

    The network has `layers` times `width` squared weights. The ways are DDP over each backend;
    `alone` on one rank while the others sleep; `apart` on all ranks, without communication. The
    last two are DDP, too, in a group of one rank: the same work, with its copies into and out of
    buckets.
    """
    inputs = torch.randn(plan["batch"], plan["width"])
    ways: dict[str, Callable[[], float]] = {}
    for name, group in (("gloo", gloo), ("ringfold", dist.group.WORLD)):
        model = torch.nn.parallel.DistributedDataParallel(
            network(plan["width"], plan["layers"]), process_group=group
        )
        ways[name] = stepper(model, inputs)
    lonely = [dist.new_group([rank], backend="ringfold") for rank in range(dist.get_world_size())][
        dist.get_rank()
    ]
    model = network(plan["width"], plan["layers"])
    local = stepper(torch.nn.parallel.DistributedDataParallel(model, process_group=lonely), inputs)
    ways |= {"apart": local, "alone": local}
    # Buckets are rebuilt after the first step, and registered after some more.
    for step in ways.values():
        for _ in range(plan["warmup"]):
            step()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    names = list(ways)
    for block in range(plan["blocks"]):
        begin = block % len(names)
        for name in names[begin:] + names[:begin]:
            # gloo's barrier sleeps, so that waiting ranks take no core from the working rank.
            dist.barrier(group=gloo)
            works = name != "alone" or dist.get_rank() == 0
            mine = [ways[name]() if works else 0.0 for _ in range(plan["steps"])]
            dist.barrier(group=gloo)
            slowest = torch.tensor(mine, dtype=torch.float64)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            say(
                {
                    "way": name,
                    "parameters": parameters,
                    "times_us": [round(us, 1) for us in slowest.tolist()],
                }
            )


def say(line: dict[str, Any]) -> None:
    if dist.get_rank() == 0:
        print(json.dumps(line), flush=True)


def main() -> None:
    plan = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("ringfold")
    gloo = dist.new_group(backend="gloo")
    if plan["pin"]:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[dist.get_rank() % len(cores)]})
    {"all_reduce": all_reduce, "train": train}[plan["what"]](plan, gloo)
    dist.destroy_process_group()


main()
