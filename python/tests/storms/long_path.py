"""Two hosts with a long path between them: TAP devices, and a relay that delays every frame.

The kernel's own delay (netem) is missing on many machines.
"""

import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from collections import deque

from harness import enter, endless
from lab import Lab, address, command

# From <linux/if_tun.h>.
TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
FRAME_BYTES_MAX = 1 << 16


class LongPath(Lab):
    """Hosts 0 and 1 at `address(0)` and `address(1)`, `delay_s` seconds apart in each direction."""

    def __init__(self, delay_s: float) -> None:
        super().__init__(2)
        self.delay_s = delay_s
        self.relay = 0

    def build(self) -> None:
        """Create the hosts and start the relay."""
        for host in self.hosts:
            command("ip", "netns", "add", host)
        ready, is_ready = os.pipe()
        self.relay = os.fork()
        if self.relay == 0:
            try:
                endless()
                taps = [tap(host) for host in self.hosts]
                os.write(is_ready, b"!")
                relay(taps, self.delay_s)
            finally:
                os._exit(1)
        os.close(is_ready)
        is_there = os.read(ready, 1) != b""
        os.close(ready)
        if not is_there:
            sys.exit("this machine makes no TAP devices")
        for number, host in enumerate(self.hosts):
            command("ip", "-n", host, "address", "add", f"{address(number)}/24", "dev", "eth0")
            command("ip", "-n", host, "link", "set", "eth0", "up")
            command("ip", "-n", host, "link", "set", "lo", "up")

    def delete(self) -> None:
        """End the relay and delete the hosts."""
        if self.relay:
            os.kill(self.relay, 9)
            os.waitpid(self.relay, 0)
            self.relay = 0
        for host in self.hosts:
            subprocess.run(["ip", "netns", "delete", host], capture_output=True, check=False)


def tap(namespace: str) -> int:
    """Return the descriptor of a device `eth0` in a namespace, which this process enters."""
    enter(namespace)
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", b"eth0", IFF_TAP | IFF_NO_PI))
    return descriptor


def relay(taps: list[int], delay_s: float) -> None:
    """Pass frames on forever, each after the delay."""
    held: deque[tuple[float, int, bytes]] = deque()
    while True:
        wait_s = max(0.0, held[0][0] - time.monotonic()) if held else None
        for came_from in select.select(taps, [], [], wait_s)[0]:
            frame = os.read(came_from, FRAME_BYTES_MAX)
            held.append((time.monotonic() + delay_s, taps[1 - taps.index(came_from)], frame))
        while held and held[0][0] <= time.monotonic():
            _, goes_to, frame = held.popleft()
            try:
                os.write(goes_to, frame)
            except OSError:
                # The device is not up yet, or full: frames may be lost.
                pass
