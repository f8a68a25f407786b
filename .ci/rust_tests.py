"""Runs the Rust tests that cargo has built, several programs at a time.

`cargo test` runs one program at a time, although the tests of most programs wait for processes and
deadlines. Here, a program that computes has a core for each of its threads. Programs that wait run
beside it, with more tests at a time than there are cores.
"""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

LOGS = Path(os.environ.get("CHECK_LOGS", "target/check")) / "rust"
SILENCE_S = 600.0
"""A program hangs if none of its tests ends for this long."""

WAITING = {"cli": 6, "faults": 6, "idle": 3, "messages": 4, "registered": 4, "groups": 2}
"""Programs whose tests mostly wait, and the number of tests that each runs at a time."""
WAITING_AT_ONCE = 2
COMPUTING_AT_ONCE = 1
RESULT = re.compile(r"^test (\S+).* \.\.\. (ok|FAILED|ignored)")


class Program(NamedTuple):
    """A program of tests."""

    name: str
    path: str
    folder: Path
    """Folder of the package, in which cargo runs tests."""

    @property
    def at_a_time(self) -> int:
        """Number of tests that run at a time."""
        return WAITING.get(self.name, os.cpu_count() or 1)


def programs(messages: Path) -> list[Program]:
    """Return the test programs in cargo's messages."""
    found = {}
    for line in messages.read_text().splitlines():
        message = json.loads(line) if line.startswith("{") else {}
        if message.get("executable") and message["profile"]["test"]:
            folder = Path(message["manifest_path"]).parent
            target = message["target"]
            name = f"{target['name']} lib" if "lib" in "".join(target["kind"]) else target["name"]
            found[message["executable"]] = Program(name, message["executable"], folder)
    return list(found.values())


class Running:
    """A running program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.log = LOGS / f"{program.name.replace(' ', '-')}.log"
        self.counts: Counter[str] = Counter()
        self.heard = time.monotonic()
        self.rest = b""
        library_path = os.pathsep.join(
            [str(Path(program.path).parent), os.environ.get("LD_LIBRARY_PATH", "")]
        )
        self.process = subprocess.Popen(
            [program.path, f"--test-threads={program.at_a_time}"],
            cwd=program.folder,
            env=os.environ
            | {"CARGO_MANIFEST_DIR": str(program.folder), "LD_LIBRARY_PATH": library_path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        assert self.process.stdout
        self.pipe = self.process.stdout
        self.file = self.log.open("wb", buffering=0)

    def read(self) -> bool:
        """Process new output; return whether there may be more."""
        data = os.read(self.pipe.fileno(), 1 << 16)
        self.file.write(data)
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            if found := RESULT.match(line.decode(errors="replace")):
                self.counts[found[2]] += 1
                self.heard = time.monotonic()
                print(f"{self.program.name}: {found[1]}", flush=True)
        return bool(data)

    def end(self) -> int:
        """Wait for the program after its last output; return its exit status."""
        self.file.close()
        return self.process.wait()

    def kill(self) -> None:
        """Kill the program and all processes in its process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def all_tests(program: Program) -> list[str]:
    """Return the names of a program's tests that are not ignored."""

    def listed(*flags: str) -> set[str]:
        said = subprocess.run(
            [program.path, "--list", "--format", "terse", *flags],
            cwd=program.folder,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        return {line.removesuffix(": test") for line in said.splitlines()}

    return sorted(listed() - listed("--ignored"))


def explain_hang(one: Running) -> str:
    """Return the reason for a hang, with the tests that have not ended."""
    ended = set(re.findall(r"^test (\S+)", one.log.read_text(errors="replace"), re.MULTILINE))
    names = [name for name in all_tests(one.program) if name not in ended]
    return f"no test ended for {SILENCE_S:.0f} s; those that had not: {', '.join(names[:20])}"


class Tests:
    """A run of all programs."""

    def __init__(self, waiting: list[Program]) -> None:
        self.waiting = waiting
        self.running: list[Running] = []
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []

    def run(self) -> None:
        """Run all programs, even after a failure."""
        while self._start() or self.running:
            ready, _, _ = select.select([one.pipe for one in self.running], [], [], 1.0)
            for one in list(self.running):
                if one.pipe in ready and not one.read():
                    self._end(one)
                elif time.monotonic() > one.heard + SILENCE_S:
                    self._fail(one, explain_hang(one))
                    one.kill()
                    self._leave(one)

    def _start(self) -> bool:
        """Start the programs that have room; return whether others are still waiting."""
        for program in list(self.waiting):
            waits = program.name in WAITING
            beside = sum((one.program.name in WAITING) == waits for one in self.running)
            if beside < (WAITING_AT_ONCE if waits else COMPUTING_AT_ONCE):
                self.waiting.remove(program)
                self.running.append(Running(program))
        return bool(self.waiting)

    def _end(self, one: Running) -> None:
        status = self._leave(one)
        if status != 0:
            self._fail(one, f"exit status {status}")

    def _leave(self, one: Running) -> int:
        self.running.remove(one)
        self.counts += one.counts
        return one.end()

    def _fail(self, one: Running, why: str) -> None:
        text = one.log.read_text(errors="replace")
        # libtest writes the output of failed tests after this heading.
        _, _, output = text.partition("\nfailures:\n")
        self.failures.append(f"== {one.program.name}: {why}\n{output or text[-8000:]}")

    def kill(self) -> None:
        """Kill all programs."""
        for one in self.running:
            one.kill()


def main() -> int:
    """Run the programs listed in the file of cargo's messages; return the exit status."""
    LOGS.mkdir(parents=True, exist_ok=True)
    found = programs(Path(sys.argv[1]))
    tests = Tests(list(found))
    try:
        tests.run()
    finally:
        tests.kill()
    print(*tests.failures, sep="\n")
    counts = tests.counts
    print(
        f"{counts['ok']} passed, {counts['FAILED']} failed, {counts['ignored']} ignored "
        f"in {len(found)} programs"
    )
    return 1 if tests.failures or not counts["ok"] else 0


if __name__ == "__main__":
    sys.exit(main())
