#!/usr/bin/env python3
"""Run PyTorch's test suite for its own backends (`distributed_test`, in its wheel) on a backend.

    python conformance.py                                          # ringfold as gloo and as mpi
    python conformance.py --backend gloo --alias gloo --world 2    # torch's own backend
    python conformance.py --backend gloo --replaced                # ringfold in gloo's place
    python conformance.py -k 'all_to_all$' --world 4 --alias mpi   # some tests, with ranks' output

Most of the suite is for GPUs. The backend's name decides which CPU tests run: some are only for
gloo, some only for mpi. A run treats the backend as one of these (`--alias`); the union over
several runs counts. Needs `expecttest` and NumPy. Exit status 1 if a test failed or exceeded its
time limit.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from suite_run import FAIL, PASS, SKIP, TIMEOUT, Result

SUITE_RUN = Path(__file__).with_name("suite_run.py")
ALIASES = ("gloo", "mpi")
WORLDS = (2, 3, 4)
# Time limit of a test. torch's own is far longer, and no test needs more than a few seconds.
TEST_LIMIT_S = 60.0
# Most tests mainly sleep in the suite's file barrier, so four at a time hardly need more of two
# cores than one.
JOBS = 4


@dataclass(frozen=True)
class Run:
    """Selection and settings of a run."""

    backend: str
    alias: str
    world: int
    pattern: str = ""
    timeout_s: float = TEST_LIMIT_S
    jobs: int = JOBS
    preload: tuple[str, ...] = ()
    # Whether ringfold replaces gloo.
    replaced: bool = False

    @property
    def name(self) -> str:
        replaced = ", replaced by ringfold" if self.replaced else ""
        return f"{self.backend} as {self.alias}{replaced}, {self.world} ranks"

    def results(self, shown: bool = True) -> dict[str, Result]:
        """Run the suite in a separate process, because it reads alias and world size at import."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "results.json"
            what = [
                "--backend",
                self.backend,
                "--alias",
                self.alias,
                "--world",
                str(self.world),
                "-k",
                self.pattern,
            ]
            how = ["--timeout", str(self.timeout_s), "--jobs", str(self.jobs), "--json", str(file)]
            preload = [word for module in self.preload for word in ("--preload", module)]
            command = [sys.executable, str(SUITE_RUN), *what, *how, *preload]
            variables = {"RINGFOLD_TORCH_REPLACE": "gloo"} if self.replaced else {}
            subprocess.run(
                command,
                check=True,
                stdout=None if shown else subprocess.DEVNULL,
                env=os.environ | variables,
            )
            return {name: Result(**result) for name, result in json.loads(file.read_text()).items()}


def passed(runs: Iterable[Mapping[str, Result]]) -> set[str]:
    """Return the tests that passed in at least one run."""
    return {name for results in runs for name, result in results.items() if result.verdict == PASS}


def failed(results: Mapping[str, Result]) -> dict[str, str]:
    """Return the failed and timed-out tests, with their reasons."""
    return {
        name: result.reason for name, result in results.items() if result.verdict in (FAIL, TIMEOUT)
    }


def summary(results: Mapping[str, Result]) -> str:
    counts = Counter(result.verdict for result in results.values())
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in (PASS, SKIP, FAIL, TIMEOUT))


def skips(results: Mapping[str, Result]) -> list[str]:
    """Return the reasons for skipped tests, the most common first."""
    counts = Counter(result.reason for result in results.values() if result.verdict == SKIP)
    return [f"{count:>5}  {reason}" for reason, count in counts.most_common()]


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = flags.add_argument
    add("--backend", default="ringfold", help="backend of the groups (default %(default)s)")
    add(
        "--alias",
        type=aliases,
        default=list(ALIASES),
        help="backends whose tests the suite runs (default gloo,mpi)",
    )
    add(
        "--world",
        type=worlds,
        default=list(WORLDS),
        help="numbers of ranks, separated by commas (default 2,3,4)",
    )
    add("-k", dest="pattern", default="", metavar="REGEX", help="only tests with matching names")
    add(
        "--timeout",
        type=float,
        default=TEST_LIMIT_S,
        help="time limit of a test in seconds (default %(default)s)",
    )
    add("--jobs", type=int, default=JOBS, help="tests at a time (default %(default)s)")
    add(
        "--preload",
        action="append",
        default=[],
        metavar="MODULE",
        help="import this once instead of in every rank",
    )
    add("--replaced", action="store_true", help="set RINGFOLD_TORCH_REPLACE=gloo")
    add("--json", type=Path, metavar="FILE", help="file for all results")
    add("--skips", action="store_true", help="print the reasons for skipped tests")
    return flags


def aliases(text: str) -> list[str]:
    return text.split(",")


def worlds(text: str) -> list[int]:
    if not all(word.isdecimal() and int(word) > 0 for word in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers from 1 up")
    return [int(word) for word in text.split(",")]


def main() -> int:
    options = parser().parse_args()
    taken: dict[str, dict[str, Result]] = {}
    for alias in options.alias:
        for world in options.world:
            preload = tuple(options.preload)
            run = Run(
                options.backend,
                alias,
                world,
                options.pattern,
                options.timeout,
                options.jobs,
                preload,
                options.replaced,
            )
            results = taken[run.name] = run.results()
            print(f"{run.name}: {summary(results)}", flush=True)
            for name, reason in failed(results).items():
                print(f"  {results[name].verdict} {name}: {reason}")
            if options.skips:
                print("\n".join(skips(results)))
    print(f"{len(passed(taken.values()))} distinct tests pass")
    if options.json:
        runs = {
            run: {name: vars(result) for name, result in results.items()}
            for run, results in taken.items()
        }
        options.json.write_text(json.dumps(runs, indent=1))
    return int(any(failed(results) for results in taken.values()))


if __name__ == "__main__":
    sys.exit(main())
