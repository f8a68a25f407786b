"""All-reduces in shared memory that serving frameworks register with torch.

Each function loads an operator for all ranks of torch's default group, and returns its call: a sum
in place. The library's file is given, because the rest of a framework is not needed.
"""

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

Call = Callable[[torch.Tensor], object]


def vllm(library: Path) -> Call:
    """Return the call of vLLM's operator."""
    torch.ops.load_library(str(library))
    rank, ranks, threads = dist.get_rank(), dist.get_world_size(), torch.get_num_threads()
    group = f"peers-{os.environ['MASTER_PORT']}"
    handle = torch.ops._C.init_shm_manager(group, ranks, rank, threads)
    dist.barrier()
    torch.ops._C.join_shm_manager(handle, group)
    dist.barrier()
    return lambda data: torch.ops._C.shm_allreduce(handle, data)


def deepspeed(library: Path) -> Call:
    """Return the call of DeepSpeed's operator."""
    # Without this variable, the operator returns the input as it is.
    os.environ["LOCAL_SIZE"] = str(dist.get_world_size())
    found = importlib.util.spec_from_file_location(library.stem, library)
    assert found and found.loader
    module: Any = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    module.initialize(dist.get_world_size(), dist.get_rank())
    dist.barrier()
    # All ranks have mapped the files, which the operator would leave behind: 69 MB of each rank.
    for file in Path("/dev/shm").glob(f"deepspeed_*_{os.environ['MASTER_PORT']}_{dist.get_rank()}"):
        file.unlink()
    return lambda data: torch.ops.deepspeed.inference_all_reduce_(data)


OPERATORS: dict[str, Callable[[Path], Call]] = {"vllm": vllm, "deepspeed": deepspeed}
# The files, in the environments that bench/peers.py makes.
FILES = {
    "vllm": "lib/python*/site-packages/vllm/_C_AVX512*.so",
    "deepspeed": "ops/deepspeed_shm_comm/deepspeed_shm_comm.so",
}


def library(venv: Path, name: str) -> Path:
    """Return the file with an operator."""
    (found,) = venv.glob(FILES[name])
    return found
