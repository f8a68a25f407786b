"""Forks the ranks of tests: reads a request per line of input, and answers with exit statuses.

Importing torch takes seconds; forking a process that has imported it takes a fraction of one. A
request names a function of a test module, which this process imports once and which must therefore
start no threads. Each rank calls the function in a process group of the requested backend, and
writes its result or exception to a file.
"""

import datetime
import gc
import importlib.util
import json
import os
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import softtorch
from forks import RAISED_STATUS, Ranks

# Time for the other ranks after a rank failed: longer than any deadline of calls in tests.
GRACE_S = 30.0

LAZY_MODULES = (
    "torch._dynamo",
    "torch._dynamo.backends.debugging",
    "torch.distributed.optim",
    "torch.nn.parallel",
)


def module_at(path: str) -> Any:
    """Return the test's module, imported on first use."""
    if path not in sys.modules:
        specification = importlib.util.spec_from_file_location(path, path)
        assert specification is not None and specification.loader is not None
        sys.modules[path] = module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
    return sys.modules[path]


def be_rank(request: dict[str, Any], rank: int) -> int:
    """Run one rank: write the result or exception to a file, and a traceback to the rank's log."""
    os.environ.update(
        request["variables"], RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(request["count"])
    )
    torch.manual_seed(request["seed"])
    # A forked process replaces torch's thread pool on first use; if two threads are the first users
    # at the same time, they find no pool.
    torch.set_num_threads(1)
    try:
        outcome = (True, call(request, rank))
    except Exception as error:
        traceback.print_exc()
        outcome = (False, error)
    result = Path(request["folder"]) / f"result{rank}"
    try:
        result.write_bytes(pickle.dumps(outcome))
    except Exception:
        # An object that cannot be pickled is replaced by its text.
        result.write_bytes(pickle.dumps((False, RuntimeError(repr(outcome[1])))))
    status = 0 if outcome[0] else RAISED_STATUS
    # Tracebacks of errors hold groups. Without them, the groups say goodbye to the other ranks, as
    # at an ordinary exit.
    del outcome
    gc.collect()
    return status


def call(request: dict[str, Any], rank: int) -> Any:
    function = getattr(module_at(request["path"]), request["function"])
    if softtorch.LIBRARY in request["variables"]:
        softtorch.load()
    if request["backend"] is None:
        return function(**request["arguments"])
    dist.init_process_group(
        request["backend"],
        init_method=f"file://{request['folder']}/store",
        rank=rank,
        world_size=request["count"],
        timeout=datetime.timedelta(seconds=request["timeout_s"]),
    )
    result = function(**request["arguments"])
    if dist.is_initialized():
        dist.destroy_process_group()
    return result


def answer(request: dict[str, Any]) -> dict[str, Any]:
    module_at(request["path"])
    # Ranks collect only their own garbage. Visiting torch's objects would cost each rank a quarter
    # of a second and a copy of their pages.
    gc.freeze()
    log = Path(request["folder"]) / "log"
    ranks = Ranks(
        lambda rank: be_rank(request, rank), request["count"], log, request["limit_s"], GRACE_S
    )
    ranks.wait()
    return {
        "statuses": [ranks.statuses.get(rank) for rank in range(request["count"])],
        "seconds": ranks.seconds,
    }


def main() -> None:
    torch.set_num_threads(1)
    # torch imports these modules on first use, which would otherwise happen in every rank.
    for module in LAZY_MODULES:
        importlib.import_module(module)
    if importlib.util.find_spec("ringfold.torch"):
        importlib.import_module("ringfold.torch")
    # Output printed by imports must not look like an answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
