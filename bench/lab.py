"""Hosts simulated by network namespaces on one bridge, with one rank of a job on each."""

import os
import secrets
import subprocess
import sys
from collections.abc import Sequence

PORT = 29400


class Lab:
    """Namespaces on a bridge, deleted at the end."""

    def __init__(self, hosts: int) -> None:
        stem = f"ringfold-lab-{os.getpid()}-{hosts}"
        self.switch = f"{stem}-switch"
        self.hosts = [f"{stem}-{host}" for host in range(hosts)]

    def __enter__(self) -> "Lab":
        try:
            self.build()
        except BaseException:
            self.delete()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.delete()

    def build(self) -> None:
        """Create hosts and links."""
        command("ip", "netns", "add", self.switch)
        command("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        command("ip", "-n", self.switch, "link", "set", "bridge", "up")
        for number, host in enumerate(self.hosts):
            port = f"port{number}"
            command("ip", "netns", "add", host)
            cable = ["link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host]
            command("ip", "-n", self.switch, *cable)
            command("ip", "-n", self.switch, "link", "set", port, "master", "bridge", "up")
            command("ip", "-n", host, "address", "add", f"{address(number)}/24", "dev", "eth0")
            command("ip", "-n", host, "link", "set", "eth0", "up")
            command("ip", "-n", host, "link", "set", "lo", "up")

    def shape(self, number: int, mbit: float, burst: str = "64kb") -> None:
        """Limit both directions of a host's link; the burst may pass at once after a silence."""
        for namespace, device in [(self.hosts[number], "eth0"), (self.switch, f"port{number}")]:
            limits = ["rate", f"{mbit}mbit", "burst", burst, "latency", "50ms"]
            command(
                "tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", *limits
            )

    def delete(self) -> None:
        """Delete all namespaces."""
        for name in [*self.hosts, self.switch]:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def address(number: int) -> str:
    """The address of a host."""
    return f"10.77.1.{number + 1}"


def command(*words: str) -> None:
    """Run a command that must succeed."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr.strip()}")


def ranks(
    lab: Lab, words: Sequence[str], seconds_max: float, more: dict[str, str] | None = None
) -> str:
    """Run a program as a rank on each host, with additional variables; return rank 0's output."""
    secret = secrets.token_hex(16)
    processes = []
    for rank, host in enumerate(lab.hosts):
        environment = {
            "PATH": os.environ["PATH"],
            "RINGFOLD_RANK": str(rank),
            "RINGFOLD_WORLD_SIZE": str(len(lab.hosts)),
            "RINGFOLD_ADDR": f"{address(0)}:{PORT}",
            "RINGFOLD_SECRET": secret,
            "RINGFOLD_TIMEOUT_MS": "60000",
            **(more or {}),
        }
        processes.append(
            subprocess.Popen(
                ["ip", "netns", "exec", host, *words],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    output = ""
    try:
        for rank, process in enumerate(processes):
            out, complaint = process.communicate(timeout=seconds_max)
            if process.returncode:
                sys.exit(f"rank {rank} of {' '.join(words)}: {complaint.strip()}")
            output = output or out
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    return output
