"""Tests of the PyTorch backend: one server (`rank_server`) forks the ranks of a session."""

import importlib.util
import json
import os
import pickle
import select
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import launching
import pytest

RANK_SERVER = Path(__file__).with_name("rank_server.py")
# Time limit of all ranks of a test; the server gets additional time.
WATCHDOG_S = 120.0
SERVER_WATCHDOG_S = 120.0
# Default deadline of a process group's calls.
TIMEOUT_S = 60.0
# A test is valid only if its claim holds for gloo, too. Checked when a test is written, not in
# every run.
BACKENDS = ("gloo", "ringfold") if os.environ.get("TEST_GLOO") else ("ringfold",)


def has_torch() -> bool:
    """Return whether torch is installed; this folder is also named torch, but is not a package."""
    found = importlib.util.find_spec("torch")
    return found is not None and found.origin is not None


class WithoutTorch(pytest.Module):
    """Skips a test module if torch is missing."""

    def collect(self) -> Any:
        pytest.skip("torch is not installed", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: Any) -> Any:
    return None if has_torch() else WithoutTorch.from_parent(parent, path=module_path)


class Outcome:
    """Results or exceptions of a test's ranks."""

    def __init__(self, folder: Path, statuses: list[int | None]) -> None:
        self.folder = folder
        # Exit status of each rank; negative for a signal; None if killed after its time limit.
        self.statuses = statuses

    def logs(self) -> str:
        texts = [
            self._read(f"log{rank}").decode(errors="replace") for rank in range(len(self.statuses))
        ]
        return "\n".join(f"--- rank {rank}\n{text}" for rank, text in enumerate(texts))

    def result(self, rank: int) -> Any:
        """Return the function's result on `rank`."""
        status = self.statuses[rank]
        assert status == 0, (
            f"rank {rank} {'hangs' if status is None else f'ended with {status}'}:\n{self.logs()}"
        )
        return pickle.loads(self._read(f"result{rank}"))[1]

    def error(self, rank: int) -> BaseException:
        """Return the exception on `rank`."""
        assert self.statuses[rank] == 1, (
            f"rank {rank} ended with {self.statuses[rank]}:\n{self.logs()}"
        )
        returned, error = pickle.loads(self._read(f"result{rank}"))
        assert not returned and isinstance(error, BaseException)
        return error

    def results(self, but: Collection[int] = ()) -> list[Any]:
        """Return the results of all ranks, except those in `but`."""
        return [self.result(rank) for rank in range(len(self.statuses)) if rank not in but]

    def _read(self, name: str) -> bytes:
        file = self.folder / name
        return file.read_bytes() if file.exists() else b""


class RankServer:
    """Process that forks ranks; starts on first use."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self.process is None or self.process.poll() is not None:
            threads = dict.fromkeys(
                ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
            )
            self.process = subprocess.Popen(
                [sys.executable, "-W", "ignore", str(RANK_SERVER)],
                env=os.environ | threads | launching.importable(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        ready, _, _ = select.select(
            [self.process.stdout], [], [], request["limit_s"] + SERVER_WATCHDOG_S
        )
        answer = self.process.stdout.readline() if ready else ""
        if not answer:
            self.end()
            pytest.fail("the server that forks ranks " + ("ended" if ready else "hangs"))
        found: dict[str, Any] = json.loads(answer)
        return found

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()


class RankStarter:
    """Calls functions of a test's module in process groups of forked ranks."""

    def __init__(self, server: RankServer, folder: Path, seed: int) -> None:
        self.server = server
        self.folder = folder
        self.seed = seed
        self.started = 0

    def __call__(
        self,
        function: Any,
        count: int,
        backend: str | None,
        /,
        timeout_s: float = TIMEOUT_S,
        variables: dict[str, str] | None = None,
        limit_s: float = WATCHDOG_S,
        **arguments: Any,
    ) -> Outcome:
        """Call `function(**arguments)` on `count` ranks, in a group of `backend` or in none."""
        folder = self.folder / f"ranks{self.started}"
        folder.mkdir()
        self.started += 1
        print(f"seed {self.seed}")
        request = {
            "path": function.__code__.co_filename,
            "function": function.__name__,
            "count": count,
            "backend": backend,
            "timeout_s": timeout_s,
            "limit_s": limit_s,
            "seed": self.seed,
            "variables": variables or {},
            "arguments": arguments,
            "folder": str(folder),
        }
        return Outcome(folder, self.server.ask(request)["statuses"])


@pytest.fixture(scope="session")
def rank_server() -> Iterator[RankServer]:
    server = RankServer()
    yield server
    server.end()


@pytest.fixture
def seed() -> int:
    """TEST_SEED, or a new seed each time; failing tests print it."""
    return int(os.environ.get("TEST_SEED", time.time_ns() % 1_000_000))


@pytest.fixture
def ranks(rank_server: RankServer, tmp_path: Path, seed: int) -> RankStarter:
    return RankStarter(rank_server, tmp_path, seed)


@pytest.fixture(scope="session")
def soft() -> dict[str, str]:
    """Variables of ranks whose accelerator is the test device."""
    import softcuda
    import softtorch

    try:
        library = softtorch.build()
    except softtorch.CannotBuild as error:
        pytest.skip(str(error))
    return {"RINGFOLD_CUDA_LIBRARY": str(softcuda.library()), softtorch.LIBRARY: str(library)}


@pytest.fixture(params=BACKENDS)
def backend(request: Any) -> str:
    """Each tested backend, in turn."""
    name: str = request.param
    return name
