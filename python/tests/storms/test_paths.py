"""The congestion control of data connections, by the length of the path."""

import os
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from harness import Job, Place, Rank
from lab import Lab, command
from long_path import LongPath

# Delay in each direction. Twice this is well above 5 ms, the round trip from which paths are long.
DELAY_S = 0.02
DEFAULT = "net.ipv4.tcp_congestion_control"


def controls() -> Counter[str]:
    """Return the number of this process' TCP connections with each congestion control."""
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                one.getpeername()
                word = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        except OSError:
            # Not a TCP connection, or the descriptor of the listing.
            continue
        found[word.rstrip(b"\0").decode()] += 1
    return found


def program(rank: Rank) -> None:
    """Run a rank that reports the congestion control of its connections."""
    comm = rank.join()
    assert comm.all_reduce(np.array([1.0 + comm.rank]))[0] == 3.0
    rank.say("controls", found=controls())
    comm.barrier()
    rank.say_ended(None)
    comm.close()


def found_between(hosts: Lab) -> list[Counter[str]]:
    """Return the congestion controls of a job's two ranks; the hosts' default is one that paces."""
    for host in hosts.hosts:
        command("ip", "netns", "exec", host, "sysctl", "-qw", f"{DEFAULT}=bbr")
    with Job(program, 2, Place("hosts", hosts)) as job:
        endings = job.finish()
        assert [ending.kind for ending in endings] == ["ok", "ok"], list(map(str, endings))
        events = [event for said in job.events for event in said if event["event"] == "controls"]
    return [Counter(event["found"]) for event in events]


def test_long_paths_go_back_to_the_congestion_control_that_paces() -> None:
    if "bbr" not in Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text():
        pytest.skip("this kernel has no congestion control that paces")
    with made(Lab(2)) as near:
        for found in found_between(near):
            assert found["cubic"] + found["reno"] >= 1, found
    with made(LongPath(DELAY_S)) as far:
        for found in found_between(far):
            assert set(found) == {"bbr"}, found


@contextmanager
def made(hosts: Lab) -> Iterator[Lab]:
    """Make the hosts, or skip the test if the machine does not permit them."""
    with ExitStack() as stack:
        try:
            stack.enter_context(hosts)
        except (SystemExit, OSError) as refusal:
            pytest.skip(f"no hosts of namespaces here: {refusal}")
        yield hosts
