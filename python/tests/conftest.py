"""Starts jobs: each rank is a separate Python process that runs one function of a test module."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# File to which each skip is appended with its reason; set by check.sh.
SKIPS_VARIABLE = "TEST_SKIPS"
RANK_PROGRAM = Path(__file__).with_name("rank_program.py")
WATCHDOG_S = 120.0


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Record the skips; with parallel workers, only in the process that reports for all."""
    path = None if hasattr(config, "workerinput") else os.environ.get(SKIPS_VARIABLE)
    if path is None:
        return
    for report in terminalreporter.stats.get("skipped", []):
        # A skip is reported as (file, line, "Skipped: reason").
        reason = str(report.longrepr[2]).removeprefix("Skipped: ")
        with open(path, "a") as file:
            file.write(f"{report.nodeid}: {reason}\n")


class Job:
    """The ranks of one job."""

    def __init__(
        self,
        function: Any,
        ranks: int,
        arguments: dict[str, Any],
        init: dict[str, Any],
        folder: Path,
    ) -> None:
        self.deadline = time.monotonic() + WATCHDOG_S
        self.folder = folder
        address = f"unix:@ringfold-test-{uuid.uuid4().hex}"
        self.processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    RANK_PROGRAM,
                    function.__code__.co_filename,
                    function.__name__,
                    self._result(rank),
                ],
                env={
                    **os.environ,
                    "RINGFOLD_RANK": str(rank),
                    "RINGFOLD_WORLD_SIZE": str(ranks),
                    "RINGFOLD_ADDR": address,
                    "TEST_ARGUMENTS": json.dumps(arguments),
                    "TEST_INIT": json.dumps(init),
                    # Ranks share few cores; a thread pool in each rank would only compete for them.
                    "OPENBLAS_NUM_THREADS": "1",
                },
                stdout=(folder / f"log{rank}").open("wb"),
                stderr=subprocess.STDOUT,
            )
            for rank in range(ranks)
        ]

    def _result(self, rank: int) -> Path:
        return self.folder / f"result{rank}"

    def log(self, rank: int) -> str:
        return (self.folder / f"log{rank}").read_text(errors="replace")

    def wait_for(self, rank: int, line: str) -> None:
        """Wait until `rank` has printed `line`."""
        while line not in self.log(rank).splitlines():
            assert self.processes[rank].poll() is None, f"rank {rank} ended:\n{self.log(rank)}"
            assert time.monotonic() < self.deadline, (
                f"rank {rank} never said {line!r}:\n{self.log(rank)}"
            )
            time.sleep(0.005)

    def signal(self, rank: int, number: int) -> None:
        self.processes[rank].send_signal(number)

    def status(self, rank: int) -> int:
        """Wait for `rank` to exit, and return its exit status."""
        try:
            return self.processes[rank].wait(max(0.1, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            logs = "\n".join(f"--- rank {r}\n{self.log(r)}" for r in range(len(self.processes)))
            pytest.fail(f"rank {rank} hangs\n{logs}")

    def result(self, rank: int) -> Any:
        """Return the function's return value on `rank`."""
        status = self.status(rank)
        assert status == 0, f"rank {rank} ended with {status}:\n{self.log(rank)}"
        return pickle.loads(self._result(rank).read_bytes())

    def results(self) -> list[Any]:
        """Return the function's return value on each rank."""
        return [self.result(rank) for rank in range(len(self.processes))]

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()


class Jobs:
    """Starts a test's jobs, and ends them with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[Job] = []

    def __call__(
        self, function: Any, ranks: int, init: dict[str, Any] | None = None, **arguments: Any
    ) -> Job:
        """Start `ranks` processes that call `function(communicator, **arguments)`."""
        folder = self.folder / f"job{len(self.started)}"
        folder.mkdir()
        job = Job(
            function,
            ranks,
            arguments,
            {"timeout": 20, "connect_timeout": 30, **(init or {})},
            folder,
        )
        self.started.append(job)
        return job


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    starter = Jobs(tmp_path)
    yield starter
    for job in starter.started:
        job.end()
