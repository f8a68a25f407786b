"""Run PyTorch's `distributed_test`, from its wheel, for one backend, world size and alias.

    python suite_run.py --backend ringfold --alias gloo --world 2 --json FILE

At import, the suite's decorators read the variable BACKEND to decide which tests a backend has.
They know only torch's own backends, so BACKEND is then the alias. Afterwards, the suite's BACKEND
is the real name, with which its tests create groups and compare names; in comparisons, it also
equals the alias. The suite is imported once, and every test's ranks are forked (see `forks`). Each
rank runs torch's own `TestDistBackend._run`, so arguments and outcomes are those of torch's runner.
`conformance.py` starts this program; use it directly for a single test.
"""

import argparse
import datetime
import functools
import gc
import importlib
import json
import logging
import os
import re
import shutil
import signal
import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from forks import LOOK_S, Ranks, described

PASS, SKIP, FAIL, TIMEOUT = "pass", "skip", "fail", "timeout"
# Time for the other ranks after a rank failed or skipped the test.
GRACE_S = 2.0
# Many tests make a group of ranks 1 and 2. BACKEND decides at run time whether they run at this
# world size: all for mpi, which is never started with fewer ranks; none for other backends with
# fewer than eight ranks.
GROUP_TESTS_RANKS = 3
# Attributes that torch's decorators require of a backend with another name.
FEATURES = ("ddp", "subgroup", "plugin", "cuda", "gpu")
# Tests that compare torch's log of DistributedDataParallel with the name that programs see.
NAMED = ("test_ddp_logging_data_cpu",)
REASON_CHARACTERS = 300
SKIPPED = re.compile(r"skipping test \S+ for following reason: (.*)")
RAISED = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*", re.MULTILINE)


@dataclass(frozen=True)
class Result:
    verdict: str
    reason: str
    seconds: float


class Name(str):
    """A backend's name that also equals its alias."""

    alias: str
    __hash__ = str.__hash__

    def __new__(cls, name: str, alias: str) -> "Name":
        made = super().__new__(cls, name)
        made.alias = alias
        return made

    def __eq__(self, other: object) -> bool:
        return str(self) == other or self.alias == other

    def __ne__(self, other: object) -> bool:
        return not self == other


class Suite:
    """torch's test class: its decorators see `alias`, and its tests use `backend`."""

    def __init__(self, backend: str, alias: str, world: int) -> None:
        os.environ.update(
            BACKEND=alias, WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", INIT_METHOD="file://"
        )
        import torch

        torch.set_num_threads(1)
        self.common = imported("torch.testing._internal.common_distributed")
        for feature in FEATURES:
            self.common.DistTestCases.backend_feature[feature].add(alias)
        self.module = imported("torch.testing._internal.distributed.distributed_test")
        bases = (self.module.TestDistBackend, self.module.DistributedTest._DistTestBase)
        self.case = type("Conformance", bases, {})
        self.world = world
        self.module.BACKEND = Name(backend, alias)
        if alias != backend:
            torch.distributed.monitored_barrier = functools.partial(
                monitored_barrier, torch.distributed
            )
        self.replaced = os.environ.get("RINGFOLD_TORCH_REPLACE") == backend
        if self.replaced:
            # Profiles have the calls of ringfold under its own name.
            for name in ("", "SEND_RECV_"):
                getattr(self.module, f"{name}PROFILING_SUPPORTED_BACKENDS").remove(backend)
        self.skips: dict[int, str] = {
            skip.exit_code: skip.message for skip in self.common.TEST_SKIPS.values()
        }

    def names(self, pattern: str) -> list[str]:
        return sorted(
            name for name in dir(self.case) if name.startswith("test_") and re.search(pattern, name)
        )

    def skipped(self, name: str) -> str | None:
        """Return a decorator's reason to skip the test, or None."""
        if self.replaced and name in NAMED:
            return "torch's log of DistributedDataParallel has ringfold's own name"
        function = getattr(self.case, name)
        return (
            getattr(function, "__unittest_skip_why__", "")
            if getattr(function, "__unittest_skip__", False)
            else None
        )

    def start(self, name: str, folder: Path, limit_s: float) -> Ranks:
        for part in ("barrier", "test_dir", "init_dir"):
            (folder / part).mkdir(parents=True)
        # `rank_server` has the reason.
        gc.freeze()
        return Ranks(
            lambda rank: self.be_rank(rank, name, folder),
            self.world,
            folder / "log",
            limit_s,
            GRACE_S,
        )

    def be_rank(self, rank: int, name: str, folder: Path) -> int:
        """Run one rank's part of a test in a separate process; end with torch's statuses."""
        log_plainly()
        shared = f"file://{folder / 'init_dir' / 'shared_init_file'}"
        if self.world < GROUP_TESTS_RANKS:
            os.environ["BACKEND"] = str(self.module.BACKEND)
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), TEMP_DIR=str(folder), INIT_METHOD=shared
        )
        self.module.INIT_METHOD = shared
        import torch

        here, parent = torch.multiprocessing.Pipe()
        case: Any = self.case
        # The spawning process' part of `setUp`; only this test's class has it as an attribute.
        case.skip_return_code_checks, case.special_return_code_checks = [], {}
        case._run(rank, name, str(folder / "init_dir" / "store"), here)
        parent.close()
        return 0


def imported(module: str) -> Any:
    return importlib.import_module(module)


def judge(ranks: Ranks, skips: Mapping[int, str]) -> tuple[str, str]:
    """Return the verdict by torch's rule (`_check_return_codes`), but a failure is never a skip."""
    text = "\n".join(ranks.printed())
    statuses = [ranks.statuses[rank] for rank in sorted(ranks.statuses)]
    if any(status != 0 and status not in skips for status in statuses):
        found = RAISED.search(text)
        return FAIL, found.group()[
            :REASON_CHARACTERS
        ] if found else f"ranks ended with {described(statuses)}"
    if any(statuses):
        found = SKIPPED.search(text)
        return SKIP, found.group(1) if found else skips[next(filter(None, statuses))]
    if ranks.timed_out:
        return TIMEOUT, f"{len(statuses)} of {len(ranks.logs)} ranks had ended"
    return PASS, ""


def monitored_barrier(
    dist: Any, group: Any = None, timeout: Any = None, wait_all_ranks: bool = False
) -> Any:
    """Do as torch 2.15's function: call the group's own `monitored_barrier`.

    Earlier versions require a group named gloo.
    """
    group = group or dist.group.WORLD
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        return None
    seconds = timeout if isinstance(timeout, int | float) else None
    timeout = datetime.timedelta(seconds=seconds) if seconds is not None else timeout
    return group.monitored_barrier(
        timeout or datetime.timedelta(minutes=30), wait_all_ranks=wait_all_ranks
    )


def run(
    suite: Suite, names: list[str], jobs: int, limit_s: float, scratch: Path
) -> dict[str, Result]:
    """Return every test's result; up to `jobs` tests run at a time."""
    results: dict[str, Result] = {}
    waiting, running = list(reversed(names)), dict[str, Ranks]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop()
                reason = suite.skipped(name)
                if reason is None:
                    running[name] = suite.start(name, scratch / name, limit_s)
                else:
                    results[name] = Result(SKIP, reason, 0.0)
            ended = [name for name, ranks in running.items() if ranks.done()]
            for name in ended:
                ranks = running.pop(name)
                results[name] = Result(*judge(ranks, suite.skips), round(ranks.seconds, 3))
                tell(name, results[name], ranks.printed())
                shutil.rmtree(scratch / name)
            if not ended:
                time.sleep(LOOK_S)
    finally:
        for ranks in running.values():
            ranks.kill()
    return dict(sorted(results.items()))


def tell(name: str, result: Result, printed: list[str]) -> None:
    if result.verdict in (FAIL, TIMEOUT):
        print(f"{result.verdict} {name} after {result.seconds:.1f} s: {result.reason}", flush=True)
        for rank, text in enumerate(printed):
            print(f"--- rank {rank} of {name}\n{text}", flush=True)


def log_plainly() -> None:
    """Make torch's log print exceptions as Python does, and reasons for skips (level `INFO`)."""
    log = logging.getLogger("torch")
    log.handlers.clear()
    log.propagate = True
    logging.basicConfig(level=logging.INFO, format="%(message)s")


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = flags.add_argument
    add("--backend", default="ringfold", help="backend of the groups (default %(default)s)")
    add("--alias", help="backend whose tests the suite runs (default: the backend itself)")
    add("--world", type=int, default=2, help="ranks of each test (default %(default)s)")
    add("-k", dest="pattern", default="", metavar="REGEX", help="only tests with matching names")
    add(
        "--timeout",
        type=float,
        default=60.0,
        help="time limit of a test in seconds (default %(default)s)",
    )
    add("--jobs", type=int, default=1, help="tests at a time (default %(default)s)")
    add(
        "--preload",
        action="append",
        default=[],
        metavar="MODULE",
        help="import this before forking",
    )
    add("--json", type=Path, required=True, metavar="FILE", help="file for the results")
    return flags


def main() -> None:
    options = parser().parse_args()
    # Ranks share few cores; a thread pool in each rank would only compete for them.
    os.environ["OMP_NUM_THREADS"] = "1"
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    warnings.simplefilter("ignore")
    suite = Suite(options.backend, options.alias or options.backend, options.world)
    for module in options.preload:
        importlib.import_module(module)
    with tempfile.TemporaryDirectory() as scratch:
        results = run(
            suite, suite.names(options.pattern), options.jobs, options.timeout, Path(scratch)
        )
    options.json.write_text(
        json.dumps({name: asdict(result) for name, result in results.items()}, indent=1)
    )


if __name__ == "__main__":
    main()
