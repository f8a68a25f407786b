"""Helpers for tests that start programs: launchers by name, a watchdog, and the output."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]

VERSION_S = 60.0
"""Time limit for a program to print its version."""


def importable() -> dict[str, str]:
    """Return variables that let a child program import this module."""
    found = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, found))}


def finish(command: list[str], watchdog_s: float, **options: Any) -> tuple[int, str]:
    """Run a command; return its exit status and the output of all its processes.

    A command that exceeds `watchdog_s` is killed.
    """
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **options,
        )
        try:
            process.wait(watchdog_s)
        except subprocess.TimeoutExpired:
            log.write(f"\nkilled: it did not end within {watchdog_s} s\n".encode())
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
        log.seek(0)
        return status, log.read().decode(errors="replace")


def ringfold() -> str:
    """Return the path of the command built by cargo, or else of an installed one."""
    builds = [ROOT / "target" / build / "ringfold" for build in ("release", "debug")]
    program = next((str(build) for build in builds if build.exists()), shutil.which("ringfold"))
    if program is None:
        pytest.skip("the command `ringfold` is not built")
    return program


def mpirun(ranks: int) -> list[str]:
    """Return the command with which the installed MPI starts `ranks` ranks on this machine."""
    program = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("no mpirun is installed")
    version = subprocess.run(
        [program, "--version"], capture_output=True, text=True, timeout=VERSION_S
    ).stdout
    rights = ["--allow-run-as-root", "--oversubscribe"] if "Open MPI" in version else []
    return [program, *rights, "-n", str(ranks)]


def named_programs(folder: Path, command: str) -> Path:
    """Make a folder with the programs named in documents: `ringfold`, this Python, its torchrun."""
    there = folder / "programs"
    there.mkdir()
    (there / "ringfold").symlink_to(command)
    for name, arguments in {"python": "", "torchrun": "-m torch.distributed.run"}.items():
        program = there / name
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments} "$@"\n')
        program.chmod(0o755)
    return there
