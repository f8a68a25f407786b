#!/usr/bin/env python3
"""Measures how channels, chunks and helper threads affect an all-reduce, and their processor time.

    cargo build --release -p ringfold-cli && cargo build --release -p ringfold --example curve
    bench/curve.py --csv channels.csv -- channels=1,2,4 sizes=64K,1M,8M,32M rounds=20
    bench/curve.py --places published --ranks 2 --csv helpers.csv -- helpers=0,1 algorithm=direct

Starts `crates/ringfold/examples/curve.rs`, whose variants alternate in one job, in each place: TCP
on loopback, network namespaces on a bridge (`hosts`; needs root and `ip`), rings of shared memory,
published memory. The rows of all places are written to one file.
"""

import argparse
import csv
import io
import os
import secrets
import subprocess
import sys
from pathlib import Path

from lab import Lab, address

ROOT = Path(__file__).resolve().parent.parent
SECONDS_MAX = 120
TRANSPORTS = {"loopback": "tcp", "hosts": "tcp", "rings": "shm", "published": "shm"}


def between_hosts(example: Path, ranks: int, words: list[str]) -> str:
    """Run a job with a rank in each namespace; return rank 0's output."""
    secret = secrets.token_hex(16)
    with Lab(ranks) as lab:
        jobs = []
        for rank, host in enumerate(lab.hosts):
            environment = {
                "PATH": os.environ["PATH"],
                "RINGFOLD_RANK": str(rank),
                "RINGFOLD_WORLD_SIZE": str(ranks),
                "RINGFOLD_ADDR": f"{address(0)}:29400",
                "RINGFOLD_SECRET": secret,
            }
            line = ["ip", "netns", "exec", host, str(example), *words]
            jobs.append(subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True))
        try:
            outputs = [job.communicate(timeout=SECONDS_MAX)[0] for job in jobs]
        finally:
            for job in jobs:
                if job.poll() is None:
                    job.kill()
                    job.wait()
        if any(job.returncode for job in jobs):
            sys.exit(f"{' '.join(words)}: a rank failed")
        return outputs[0]


def on_this_host(command: Path, example: Path, ranks: int, words: list[str]) -> str:
    """Run a job on this host; return rank 0's output."""
    line = [str(command), "run", "--no-prefix", "-n", str(ranks), "--", str(example), *words]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, timeout=SECONDS_MAX, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(line)}: status {done.returncode}")
    return done.stdout


def main() -> None:
    """Measure, and write the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--command", type=Path, default=ROOT / "target/release/ringfold")
    parser.add_argument("--example", type=Path, default=ROOT / "target/release/examples/curve")
    parser.add_argument("--places", default="loopback,hosts,rings")
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("settings", nargs="*", help="the example's, as name=value")
    options = parser.parse_args()
    rows: list[dict[str, str]] = []
    for place in options.places.split(","):
        for ranks in options.ranks.split(","):
            words = [f"place={place}", f"transport={TRANSPORTS[place]}", *options.settings]
            if place == "hosts":
                text = between_hosts(options.example, int(ranks), words)
            else:
                text = on_this_host(options.command, options.example, int(ranks), words)
            print(text, end="")
            rows += csv.DictReader(io.StringIO(text))
    if options.csv:
        options.csv.parent.mkdir(parents=True, exist_ok=True)
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
