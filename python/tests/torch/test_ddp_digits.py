"""The guarantees of `examples/ddp_digits.py` under torchrun, even if a rank dies."""

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "ddp_digits.py"
WATCHDOG_S = 240.0
SUMMARY = re.compile(
    r"(\w+), (\d+) ranks, (\d+) epochs: accuracy ([\d.]+), [\d.]+ ms a step \(median of (\d+)\), "
    r"[\d.]+ s on (\w+)"
)
# Runs the example with torch's test device as its accelerator.
ON_SOFT = f"""
import runpy, sys
import softtorch

softtorch.load()
sys.argv[0] = {str(EXAMPLE)!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Torchrun:
    """The example's ranks under torchrun."""

    def __init__(
        self,
        log: Path,
        ranks: int,
        *words: object,
        restarts: int = 0,
        program: Path = EXAMPLE,
        **variables: str,
    ) -> None:
        self.log = log
        self.identifier = uuid.uuid4().hex
        self.deadline = time.monotonic() + WATCHDOG_S
        rendezvous = [
            "--nnodes",
            "1",
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            "localhost:0",
            "--rdzv-id",
            self.identifier,
        ]
        # The interval between two checks is long enough that the survivors report a rank's death.
        how = ["--nproc-per-node", ranks, "--max-restarts", restarts, "--monitor-interval", 2]
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            *rendezvous,
            *how,
            program,
            *words,
        ]
        self.process = subprocess.Popen(
            [str(word) for word in command],
            env=os.environ | {"OMP_NUM_THREADS": "1"} | variables,
            stdout=log.open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self) -> str:
        """Wait until all ranks have ended successfully, and return their output."""
        try:
            status = self.process.wait(max(0.1, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            pytest.fail(f"torchrun hangs:\n{self.output()}")
        assert status == 0, self.output()
        return self.output()

    def wait_for(self, file: Path) -> None:
        while not file.exists():
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < self.deadline, (
                f"there is never a {file.name}:\n{self.output()}"
            )
            time.sleep(0.005)

    def pid(self, rank: int) -> int:
        """Return the pid of this rank, found by its environment."""
        wanted = {f"RANK={rank}".encode(), f"TORCHELASTIC_RUN_ID={self.identifier}".encode()}
        (found,) = (pid for pid, variables in environments() if wanted <= variables)
        return found

    def end(self) -> None:
        for pid, variables in environments():
            if f"TORCHELASTIC_RUN_ID={self.identifier}".encode() in variables:
                os.kill(pid, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def environments() -> Iterator[tuple[int, set[bytes]]]:
    """Yield the pid and variables of every process that may be inspected."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                yield int(entry.name), set((entry / "environ").read_bytes().split(b"\0"))
            except OSError:
                pass


@pytest.fixture
def torchrun(tmp_path: Path) -> Iterator[Any]:
    started: list[Torchrun] = []

    def start(ranks: int, *words: object, **how: Any) -> Torchrun:
        started.append(Torchrun(tmp_path / f"log{len(started)}", ranks, *words, **how))
        return started[-1]

    yield start
    for each in started:
        each.end()


@pytest.mark.deep
def test_digits_are_learned_on_an_accelerator(
    torchrun: Any, soft: dict[str, str], tmp_path: Path
) -> None:
    program = tmp_path / "on_soft.py"
    program.write_text(ON_SOFT)
    variables = soft | {"PYTHONPATH": str(Path(__file__).parent)}
    words = ("--device", "soft", "--epochs", 12)
    found = SUMMARY.search(torchrun(2, *words, program=program, **variables).wait())
    assert found is not None and found.group(1, 6) == ("ringfold", "soft")
    assert float(found.group(4)) >= 0.95


def test_training_goes_on_from_its_checkpoint_when_a_rank_is_killed(
    torchrun: Any, tmp_path: Path
) -> None:
    # Not with gloo: its ranks often fail to reconnect after a restart.
    checkpoint, epochs = tmp_path / "digits.pt", 100
    run = torchrun(2, "--epochs", epochs, "--checkpoint", checkpoint, restarts=1)
    run.wait_for(checkpoint)
    os.kill(run.pid(1), signal.SIGKILL)
    output = run.wait()
    resumed = re.search(r"resumed after epoch (\d+)", output)
    assert resumed is not None, output
    assert 1 <= int(resumed.group(1)) < epochs
    found = SUMMARY.search(output)
    # 1437 samples in batches of 128 are twelve steps per epoch; steps before the checkpoint are not
    # repeated.
    assert found is not None and int(found.group(5)) == 12 * (epochs - int(resumed.group(1)))
    assert float(found.group(4)) >= 0.95
