#!/usr/bin/env python3
"""The time of a GOAL text by SimGrid, in microseconds.

Usage: simgrid_goal.py FILE [ALPHA_US [GBIT_PER_S]]

Needs the module `simgrid` (Debian: python3-simgrid). Hosts have a full-duplex port, by default of
100 Gbit/s; the latency is on the link into the receiver. Receivers are ready from the beginning, so
messages are eager. Every line of the text is an actor that waits for the lines it requires.
"""

import os
import sys
import tempfile

from simgrid import Actor, Engine, Host, Mailbox, Semaphore, this_actor

# SimGrid's plain flow model, without its corrections for TCP and without rounding.
MODEL = [
    "--log=root.thres:error",
    "--cfg=network/model:CM02",
    "--cfg=network/latency-factor:1",
    "--cfg=network/bandwidth-factor:1",
    "--cfg=network/weight-S:0",
    "--cfg=network/crosstraffic:0",
    "--cfg=network/TCP-gamma:1e15",
    "--cfg=surf/precision:1e-13",
]


def parse(text):
    """The ranks, and all tasks: (rank, words, required, begun before)."""
    tasks, rank, labels = [], 0, {}
    for line in text.splitlines():
        words = line.split()
        if not words or words[0] in ("num_ranks", "}"):
            continue
        if words[0] == "rank":
            rank = int(words[1])
        elif words[1] in ("requires", "irequires"):
            later, earlier = labels[rank, words[0]], labels[rank, words[2]]
            tasks[later][2 if words[1] == "requires" else 3].append(earlier)
        else:
            labels[rank, words[0].rstrip(":")] = len(tasks)
            tasks.append((rank, words[1:], [], []))
    return int(text.split()[1]), tasks


def platform(ranks, alpha_us, gbit_per_s):
    """A star: each host sends by one link and receives by another."""
    lines = [
        "<?xml version='1.0'?>",
        '<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">',
    ]
    lines += ['<platform version="4.1">', '<zone id="star" routing="Full">']
    lines += [f'<host id="h{rank}" speed="1Gf"/>' for rank in range(ranks)]
    for rank in range(ranks):
        lines.append(f'<link id="up{rank}" bandwidth="{gbit_per_s}Gbps" latency="0us"/>')
        lines.append(f'<link id="down{rank}" bandwidth="{gbit_per_s}Gbps" latency="{alpha_us}us"/>')
    for one in range(ranks):
        for other in range(ranks):
            if one != other:
                links = f'<link_ctn id="up{one}"/><link_ctn id="down{other}"/>'
                lines.append(f'<route src="h{one}" dst="h{other}" symmetrical="NO">{links}</route>')
    return "\n".join([*lines, "</zone>", "</platform>"])


class Run:
    """One text, being simulated."""

    def __init__(self, tasks):
        self.tasks = tasks
        self.finished = 0.0
        # Each task notifies those that wait for its end, and for its beginning.
        self.ended = [Semaphore(0) for _ in tasks]
        self.begun = [Semaphore(0) for _ in tasks]
        self.wanted = [[0, 0] for _ in tasks]
        for _, _, required, before in tasks:
            for earlier in required:
                self.wanted[earlier][0] += 1
            for earlier in before:
                self.wanted[earlier][1] += 1
        self.arrived, self.cpus = {}, {}

    def start(self):
        for number, (rank, words, _, _) in enumerate(self.tasks):
            host = Host.by_name(f"h{rank}")
            if words[0] == "recv":
                key = (int(words[3]), rank, int(words[5]))
                self.arrived[key] = Semaphore(0)
                Actor.create(f"inbox{number}", host, self.inbox, key)
            elif words[0] == "calc":
                self.cpus.setdefault((rank, words[3]), Semaphore(1))
            Actor.create(f"task{number}", host, self.task, number)

    def inbox(self, key):
        Mailbox.by_name(str(key)).get()
        self.arrived[key].release()

    def task(self, number):
        rank, words, required, before = self.tasks[number]
        for earlier in required:
            self.ended[earlier].acquire()
        for earlier in before:
            self.begun[earlier].acquire()
        for _ in range(self.wanted[number][1]):
            self.begun[number].release()
        if words[0] == "send":
            key = (rank, int(words[3]), int(words[5]))
            Mailbox.by_name(str(key)).put("data", int(words[1].rstrip("b")))
        elif words[0] == "recv":
            self.arrived[int(words[3]), rank, int(words[5])].acquire()
        else:
            cpu = self.cpus[rank, words[3]]
            cpu.acquire()
            this_actor.sleep_for(int(words[1]) * 1e-12)
            cpu.release()
        self.finished = max(self.finished, Engine.clock)
        for _ in range(self.wanted[number][0]):
            self.ended[number].release()


def main():
    path, *rest = sys.argv[1:]
    alpha_us, gbit_per_s = (rest + ["5", "100"][len(rest) :])[:2]
    with open(path, encoding="utf-8") as file:
        ranks, tasks = parse(file.read())
    engine = Engine([sys.argv[0], *MODEL])
    with tempfile.NamedTemporaryFile("w", suffix=".xml", delete=False) as file:
        file.write(platform(ranks, alpha_us, gbit_per_s))
    try:
        engine.load_platform(file.name)
    finally:
        os.unlink(file.name)
    run = Run(tasks)
    run.start()
    engine.run()
    print(f"{run.finished * 1e6:.5f}")


if __name__ == "__main__":
    main()
