"""Preparations outside the guest of rdma_vm.sh for benchmarks that run in it.

The guest has no network, and loses files outside the current directory when it ends. Therefore
packages are installed and C programs built outside, before the guest is started.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from comparison.libraries import BENCH, BUILT, ROOT

# Enough for messages of 64 MiB, and for all programs of a table.
GUEST = {"RDMA_VM_MEMORY": "4096", "RDMA_VM_TIMEOUT": "1800"}
COMPILER = ("gcc", "libc6-dev")
VERBS = (*COMPILER, "libibverbs-dev")
INSTALL = ("apt-get", "install", "-y", "-qq", "--no-install-recommends")


def absent(packages: Sequence[str]) -> list[str]:
    """Return the Debian packages that are not installed."""
    installed = "install ok installed"
    return [
        package
        for package in packages
        if installed not in said(["dpkg-query", "-W", "-f", "${Status}", package])
    ]


def said(words: Sequence[str]) -> str:
    """Return a command's output, even if it fails."""
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout


def refusal(packages: Sequence[str]) -> str:
    """Install missing packages; return why that is impossible, or an empty text."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-query")):
        return "this system has no apt-get"
    missing = absent(packages)
    if not missing:
        return ""
    words = " ".join(missing)
    if os.geteuid() != 0:
        return f"not installed: {words}; run apt-get install {words}, or this as root"
    print(f"installing {words}", file=sys.stderr)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], [*INSTALL, *missing]):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return f"apt-get cannot install {words}: {done.stderr.strip()}" if done.returncode else ""


def built(name: str, compiler: str, source: str, *libraries: str) -> Path:
    """Build a program of bench/ as target/peers/NAME."""
    BUILT.mkdir(parents=True, exist_ok=True)
    words = [compiler, "-O2", "-o", str(BUILT / name), str(BENCH / source), *libraries]
    subprocess.run(words, check=True)
    return BUILT / name


def build_with_verbs(name: str, what: str) -> None:
    """Build a C program over libibverbs, or report why its measurement `what` is left out."""
    if reason := refusal(VERBS):
        print(f"{what} is left out: {reason}", file=sys.stderr)
    else:
        built(name, "cc", f"{name}.c", "-libverbs")


def kept(path: str) -> str:
    """Check an argument: a path for rows that the guest keeps (in the repository), or `none`."""
    if path != "none" and not (ROOT / path).resolve().is_relative_to(ROOT):
        raise argparse.ArgumentTypeError(f"the guest keeps only files below {ROOT}")
    return path


def start(program: str, arguments: Sequence[str]) -> NoReturn:
    """Continue with a program of bench/ in the guest; files are written below the repository."""
    os.chdir(ROOT)
    words = ["bench/rdma_vm.sh", f"bench/{program}", *arguments]
    os.execve(words[0], words, guest_variables(os.environ))


def guest_variables(given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of rdma_vm.sh; given variables take precedence."""
    return {**GUEST, **given}
