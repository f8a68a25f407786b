"""Forks the ranks of tests: reads a request on each line of its input, and answers with the ranks'
exit statuses.

Importing torch takes seconds; forking a process that has imported it takes a fraction of one. A
request names a function of a test's module, which is imported here once and must therefore start no
threads. Each rank calls the function in a process group of the requested backend and writes its
result or exception to a file.
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

# How long the others may continue after a rank failed: longer than any deadline of calls in tests.
GRACE_S = 30.0

LAZY_MODULES = (
    "torch._dynamo",
    "torch._dynamo.backends.debugging",
    "torch.distributed.optim",
    "torch.nn.parallel",
)


def module_at(path: str) -> Any:
    """The test's module, imported on first use."""
    if path not in sys.modules:
        specification = importlib.util.spec_from_file_location(path, path)
        assert specification is not None and specification.loader is not None
        sys.modules[path] = module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
    return sys.modules[path]


def be_rank(request: dict[str, Any], rank: int) -> int:
    """One rank: the result or exception goes to a file, and the traceback to the rank's log."""
    os.environ.update(
        request["variables"], RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(request["count"])
    )
    torch.manual_seed(request["seed"])
    # A forked process replaces torch's pool of threads on first use, and two threads that use it
    # first at the same time find none.
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
        # Objects that cannot be pickled are replaced by their text.
        result.write_bytes(pickle.dumps((False, RuntimeError(repr(outcome[1])))))
    status = 0 if outcome[0] else RAISED_STATUS
    # The tracebacks of errors hold groups; without them the others get a goodbye, as from a process
    # that ends as usual.
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
    # Ranks collect their own garbage only. To visit torch's objects would take each a quarter of a
    # second, and a copy of their pages.
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
    # Modules that torch imports on first use, which would otherwise be imported in every rank.
    for module in LAZY_MODULES:
        importlib.import_module(module)
    if importlib.util.find_spec("ringfold.torch"):
        importlib.import_module("ringfold.torch")
    # Output printed while modules are imported is not an answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
