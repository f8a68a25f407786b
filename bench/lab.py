"""Hosts simulated by network namespaces on one bridge.

A host is a namespace with one interface and an address; its name resolves on all hosts. All hosts
share this machine's cores, memory and kernel.
"""

import itertools
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

PORT = 29400
DEVICE = "eth0"
# Bytes on the wire per byte of TCP payload in a full frame: 1500 of IP and 14 of Ethernet, which
# tbf counts, for 1448 of payload.
WIRE = 1514 / 1448
# `ip netns exec` mounts the files in a namespace's folder here over those in /etc.
FILES = Path("/etc/netns")
KERNEL_CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")
PERMITTED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
# Runs a command on a host; its first argument is the host.
ENTER = Path(__file__).resolve().parent / "enter_host.sh"

_labs = itertools.count()


class Lab:
    """Namespaces on a bridge, deleted at the end."""

    def __init__(self, hosts: int) -> None:
        stem = f"ringfold-lab-{os.getpid()}-{next(_labs)}"
        self.switch = f"{stem}-switch"
        self.hosts = [f"{stem}-{host}" for host in range(hosts)]

    def __enter__(self) -> Self:
        delete_abandoned()
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
        lines = [f"{address(number)} {host}" for number, host in enumerate(self.hosts)]
        names = "\n".join(["127.0.0.1 localhost", *lines, ""])
        for number, host in enumerate(self.hosts):
            port = f"port{number}"
            command("ip", "netns", "add", host)
            (FILES / host).mkdir(parents=True, exist_ok=True)
            (FILES / host / "hosts").write_text(names)
            cable = ["link", "add", port, "type", "veth", "peer", "name", DEVICE, "netns", host]
            command("ip", "-n", self.switch, *cable)
            command("ip", "-n", self.switch, "link", "set", port, "master", "bridge", "up")
            command("ip", "-n", host, "address", "add", f"{address(number)}/24", "dev", DEVICE)
            command("ip", "-n", host, "link", "set", DEVICE, "up")
            command("ip", "-n", host, "link", "set", "lo", "up")

    def address(self, number: int) -> str:
        """Return the address of a host."""
        return address(number)

    def variables(self, number: int) -> dict[str, str]:
        """Return the environment variables for the ranks of a host."""
        return {}

    def set_congestion(self, name: str) -> None:
        """Set the default congestion control of the hosts' future connections."""
        permitted = PERMITTED.read_text().strip()
        if name not in permitted.split():
            sys.exit(
                f"namespaces may not use {name!r}: add it to "
                f"net.ipv4.tcp_allowed_congestion_control, which is {permitted!r}"
            )
        for host in self.hosts:
            setting = f"net.ipv4.tcp_congestion_control={name}"
            command("ip", "netns", "exec", host, "sysctl", "-qw", setting)

    def shape(self, number: int, mbit: float, burst: str = "64kb") -> None:
        """Limit both directions of a host's link; after a silence, a burst may pass at once."""
        for namespace, device in [(self.hosts[number], DEVICE), (self.switch, f"port{number}")]:
            limits = ["rate", f"{mbit}mbit", "burst", burst, "latency", "50ms"]
            command(
                "tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", *limits
            )

    def plug(self, number: int, is_in: bool) -> None:
        """Connect or disconnect a host's cable."""
        self._set(f"port{number}", is_in)

    def power(self, is_on: bool) -> None:
        """Switch the bridge on or off."""
        self._set("bridge", is_on)

    def _set(self, device: str, is_up: bool) -> None:
        command("ip", "-n", self.switch, "link", "set", device, "up" if is_up else "down")

    def lose(self, number: int, is_sent: bool) -> None:
        """Silently drop all packets that a host sends, or all that are sent to it."""
        namespace, device = (
            (self.hosts[number], "eth0") if is_sent else (self.switch, f"port{number}")
        )
        command("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "blackhole")

    def mend(self) -> None:
        """Undo all outages and limits."""
        self.power(True)
        for number, host in enumerate(self.hosts):
            self.plug(number, True)
            # Flushes the addresses that the host remembers as unreachable.
            command("ip", "-n", host, "neighbour", "flush", "all")
            for namespace, device in [(host, "eth0"), (self.switch, f"port{number}")]:
                # Fails if the device has no such rule.
                words = ["tc", "-n", namespace, "qdisc", "delete", "dev", device, "root"]
                subprocess.run(words, capture_output=True, check=False)

    def delete(self) -> None:
        """Delete all namespaces."""
        for name in [*self.hosts, self.switch]:
            delete(name)


def address(number: int) -> str:
    """Return the address of a host."""
    return f"10.77.1.{number + 1}"


def delete(name: str) -> None:
    """Delete a namespace, and the files mounted in it."""
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    (FILES / name / "hosts").unlink(missing_ok=True)
    if (FILES / name).is_dir():
        (FILES / name).rmdir()


def delete_abandoned() -> None:
    """Delete the remains of labs whose process was killed."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    for name in abandoned(listed.stdout):
        delete(name)


def abandoned(listed: str) -> list[str]:
    """Return the labs' namespaces in the output of `ip netns list` whose process does not exist."""
    found = re.findall(r"^(ringfold-lab-(\d+)-\S+)", listed, re.MULTILINE)
    return [name for name, pid in found if not Path(f"/proc/{pid}").exists()]


def command(*words: str) -> None:
    """Run a command that must succeed."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr.strip()}")


def job(ranks: int) -> list[dict[str, str]]:
    """Return the variables of each rank of a new job, whose first rank is on the first host."""
    shared = {
        "RINGFOLD_WORLD_SIZE": str(ranks),
        "RINGFOLD_ADDR": f"{address(0)}:{PORT}",
        "RINGFOLD_SECRET": secrets.token_hex(16),
        "RINGFOLD_TIMEOUT_MS": "60000",
    }
    return [{**shared, "RINGFOLD_RANK": str(rank)} for rank in range(ranks)]


def ranks(
    lab: Lab,
    words: Sequence[str],
    seconds_max: float,
    more: dict[str, str] | None = None,
    per_host: int = 1,
) -> str:
    """Run a program as ranks on each host, with additional variables; return rank 0's output."""
    processes = []
    hosts = [host for host in lab.hosts for _ in range(per_host)]
    for host, variables in zip(hosts, job(len(hosts)), strict=True):
        environment = {"PATH": os.environ["PATH"], **variables, **(more or {})}
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
