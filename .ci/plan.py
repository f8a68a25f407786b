"""Stages of check.sh, the lanes in which they run, and their dependencies."""

from collections.abc import Sequence
from typing import NamedTuple


class Stage(NamedTuple):
    """A part of the check."""

    name: str
    lane: str
    """Lane of the stage. A lane runs its stages one at a time: always the first that is ready."""
    command: tuple[str, ...]
    """Name and arguments of a function of check.sh."""
    needs: tuple[str, ...] = ()
    """Stages that must pass first, if they run at all."""
    runs: tuple[str, ...] = ()
    """Stages whose products this stage runs: without them, it would run outdated ones."""


BUILT = ("rust build", "python environment")

GATE = [
    # Everything that cargo compiles. Two runs at a time would block on cargo's folder lock.
    Stage("format", "cargo", ("format",)),
    Stage("rust build", "cargo", ("rust_build",)),
    Stage("wheel", "cargo", ("wheel",), BUILT, ("python environment",)),
    Stage("lints", "cargo", ("lints",)),
    Stage("doctests", "cargo", ("doctests",)),
    Stage("loom tests", "cargo", ("loom_models", "2")),
    Stage("site", "cargo", ("site",)),
    # Two tests need triton's assembler, which comes with torch. The wheel is quick to build, and
    # all Python tests wait for it.
    Stage("rust tests", "rust", ("rust_tests",), ("wheel",), BUILT),
    # Most of its time is spent in pip, which uses one core.
    Stage("python environment", "python", ("python_environment",)),
    Stage("torch tests", "python", ("torch_tests",), ("wheel",), ("wheel",)),
    Stage("python types", "python", ("python_types",), ("wheel",), ("wheel",)),
    Stage("python tests", "python", ("python_tests",), ("wheel",), ("wheel",)),
    Stage("documents", "python", ("documents",), ("wheel",), ("wheel",)),
    Stage("digits", "python", ("digits",), ("wheel",), BUILT + ("wheel",)),
]
"""Stages that every change must pass."""

DEEP = [
    Stage("deep loom tests", "deep", ("loom_models", "3")),
    Stage("deep rust tests", "deep", ("deep_rust",)),
    Stage("published wheel", "deep", ("published_wheel",)),
    Stage("deep python tests", "deep", ("deep_python",), runs=("wheel",)),
    Stage("crates", "deep", ("crates",)),
    Stage("storms", "deep", ("storms",), runs=("wheel",)),
    Stage("rdma in a virtual machine", "deep", ("rdma_vm",)),
]
"""Stages that `--deep` adds, after all others."""


def plan(is_deep: bool, only: Sequence[str]) -> list[Stage]:
    """Return the stages of a run, in the order in which they begin.

    With `only`, these are the named stages and those whose products they run.
    """
    names = tuple(stage.name for stage in GATE)
    stages = GATE + [stage._replace(needs=names) for stage in DEEP if is_deep]
    if not only:
        return stages
    by_name = {stage.name: stage for stage in stages}
    if unknown := set(only) - set(by_name):
        raise ValueError(f"no stage is called {', '.join(sorted(unknown))}")
    chosen: set[str] = set()
    more = list(only)
    while more:
        stage = by_name[more.pop()]
        chosen.add(stage.name)
        more.extend(stage.runs)
    return [
        stage._replace(needs=stage.needs + stage.runs) for stage in stages if stage.name in chosen
    ]
