"""Runs the stages of check.sh, several at a time, shows progress, and leaves no process behind.

A stage is a function of check.sh, run in its own process group. A lane runs its stages one at a
time. Lanes run at the same time, because tests spend much of their time waiting for processes and
deadlines. The first failure ends everything, and so do Ctrl-C and SIGTERM. The output of a stage is
kept in target/check, and printed if the stage fails.
"""

import argparse
import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from plan import Stage, plan

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / os.environ.get("CHECK_LOGS", "target/check")
TIMES = LOGS / "times.tsv"

SIGN_OF_LIFE_S = {True: 15.0, False: 60.0}
"""Seconds between two progress reports: on a terminal, and in a file."""
END_S = 20.0
"""Time for stages to end on their own after Ctrl-C, with all processes that they started."""
LINES_OF_A_FAILURE = 400
PROCESSOR_BUDGET_S = 2000.0
"""Processor time above which a warning is printed: a run that compiles everything would then take
two cores more than about 17 minutes."""
PR_SET_CHILD_SUBREAPER = 36
ENDS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
WATCHED = {signal.SIGCHLD, *ENDS}


class Running(NamedTuple):
    """A stage whose process runs."""

    stage: Stage
    process: int
    began: float
    log: Path


class Ended(NamedTuple):
    """Times of a stage: elapsed seconds, and processor seconds."""

    name: str
    elapsed_s: float
    processor_s: float


class Failed(Exception):
    """A stage failed with this exit status."""

    def __init__(self, name: str, status: int) -> None:
        super().__init__(name)
        self.name, self.status = name, status


class Interrupted(Exception):
    """A signal requested the end of the run."""


def last_line(log: Path) -> str:
    """Return the last line of a log that is not empty."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 2000))
        lines = file.read().decode(errors="replace").replace("\r", "\n").splitlines()
    plain = (re.sub(r"\x1b\[[0-9;]*m", "", line).strip(" =") for line in reversed(lines))
    return next((line for line in plain if line), "")


def descendants() -> set[int]:
    """Return all descendants of this process, even those whose parents have ended."""
    parents: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                # The parent is the second word after the name, which may contain any characters.
                state = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if state[0] != "Z":
                parents.setdefault(int(state[1]), []).append(int(folder.name))
    found: set[int] = set()
    more = deque([os.getpid()])
    while more:
        children = parents.get(more.popleft(), [])
        found.update(children)
        more.extend(children)
    return found


class Check:
    """A run of the stages."""

    def __init__(self, stages: list[Stage], shell: list[str], mask: set[int]) -> None:
        self.waiting = stages
        self.shell = shell
        self.mask = mask
        self.began = time.monotonic()
        self.running: list[Running] = []
        self.ended: list[Ended] = []

    def run(self) -> None:
        """Run all stages; raises `Failed` or `Interrupted`."""
        period_s = SIGN_OF_LIFE_S[sys.stdout.isatty()]
        next_sign = self.began + period_s
        self._start()
        while self.running:
            found = signal.sigtimedwait(WATCHED, max(0.0, next_sign - time.monotonic()))
            if found is not None and found.si_signo in ENDS:
                raise Interrupted(signal.Signals(found.si_signo).name)
            for ended in self._reap():
                self._end(*ended)
            self._start()
            if time.monotonic() >= next_sign:
                self._show()
                next_sign = time.monotonic() + period_s

    def _start(self) -> None:
        """Start the stages that no longer wait for others."""
        open_names = {one.name for one in self.waiting} | {one.stage.name for one in self.running}
        for stage in list(self.waiting):
            is_busy = any(one.stage.lane == stage.lane for one in self.running)
            if is_busy or open_names.intersection(stage.needs):
                continue
            self.waiting.remove(stage)
            self._print(f"== {stage.name}")
            log = LOGS / f"{stage.name.replace(' ', '-')}.log"
            with log.open("wb") as file:
                process = subprocess.Popen(
                    [*self.shell, *stage.command],
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, self.mask),
                )
            # `_reap` collects the exit status, instead of this object.
            process.returncode = 0
            self.running.append(Running(stage, process.pid, time.monotonic(), log))

    def _reap(self) -> Iterator[tuple[Running, int, float]]:
        """Yield the stages that have ended, with status and processor seconds; drop orphans."""
        while True:
            try:
                process, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if process == 0:
                return
            for one in [one for one in self.running if one.process == process]:
                self.running.remove(one)
                yield one, os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime

    def _end(self, one: Running, status: int, processor_s: float) -> None:
        elapsed_s = time.monotonic() - one.began
        took = f"{elapsed_s:.0f} s, {processor_s:.0f} s of processors"
        if status != 0:
            text = one.log.read_text(errors="replace").splitlines()
            print("\n".join(text[-LINES_OF_A_FAILURE:]))
            self._print(f"-- {one.stage.name}: failed after {took}; all output: {one.log}")
            raise Failed(one.stage.name, status if status > 0 else 128 - status)
        last = last_line(one.log)
        result = f": {last}" if re.search(r"\d passed|^Success", last) else ""
        self._print(f"-- {one.stage.name}: {took}{result}")
        self.ended.append(Ended(one.stage.name, elapsed_s, processor_s))

    def _show(self) -> None:
        """Report the running stages: for how long, and their latest output."""
        for one in self.running:
            elapsed_s = time.monotonic() - one.began
            self._print(f".. {one.stage.name}, {elapsed_s:.0f} s: {last_line(one.log)[:100]}")

    def _print(self, text: str) -> None:
        elapsed = int(time.monotonic() - self.began)
        print(f"{elapsed // 60:3}:{elapsed % 60:02} {text}", flush=True)

    def stop(self) -> None:
        """End all processes: first with SIGINT, so that tests end their own, then with SIGKILL."""
        for one in self.running:
            with suppress(ProcessLookupError):
                os.killpg(one.process, signal.SIGINT)
        deadline = time.monotonic() + (END_S if self.running else 0)
        while self.running and time.monotonic() < deadline:
            found = signal.sigtimedwait(WATCHED, 0.5)
            if found is not None and found.si_signo in ENDS:
                break
            for _ in self._reap():
                pass
        while left := descendants():
            for process in left:
                # The process may have ended, and its parent collected it.
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.05)
            for _ in self._reap():
                pass


def keep_times(ended: list[Ended]) -> None:
    """Append the times of stages to a file."""
    now = time.strftime("%Y-%m-%dT%H:%M:%S")
    is_new = not TIMES.exists()
    with TIMES.open("a") as file:
        if is_new:
            file.write("begun\tstage\tseconds\tprocessor_seconds\n")
        for one in ended:
            file.write(f"{now}\t{one.name}\t{one.elapsed_s:.1f}\t{one.processor_s:.1f}\n")


def skips(path: Path, all_required: bool) -> bool:
    """Print the skipped tests; return whether they are allowed."""
    found = sorted(set(path.read_text().splitlines())) if path.exists() else []
    if not found:
        return True
    print("\n== skipped", *found, sep="\n")
    if all_required:
        print(
            "\ncheck.sh: FAILED in: skipped tests, which RINGFOLD_REQUIRE_ALL=1 does not allow",
            file=sys.stderr,
        )
    return not all_required


def main() -> int:
    """Run the stages that the command line selects; return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--deep", action="store_true")
    parser.add_argument("--require-all", action="store_true")
    arguments = parser.parse_args()
    try:
        stages = plan(arguments.deep, arguments.only)
    except ValueError as error:
        print(f"check.sh: --only: {error}", file=sys.stderr)
        return 2
    LOGS.mkdir(parents=True, exist_ok=True)
    skipped = LOGS / "skips"
    skipped.unlink(missing_ok=True)
    # Tests append a line to this file for each skip.
    os.environ["TEST_SKIPS"] = str(skipped)
    # Orphans become children of this process, which can then end them.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    mask = {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)}
    check = Check(stages, ["bash", str(ROOT / "check.sh"), "--stage"], mask)
    try:
        check.run()
    except Failed as failure:
        print(f"\ncheck.sh: FAILED in: {failure.name}", file=sys.stderr)
        return failure.status
    except Interrupted as end:
        names = ", ".join(one.stage.name for one in check.running)
        print(f"\ncheck.sh: ended by {end}, in: {names}", file=sys.stderr)
        return 130
    finally:
        sys.stdout.flush()
        check.stop()
    keep_times(check.ended)
    processor_s = sum(one.processor_s for one in check.ended)
    if processor_s > PROCESSOR_BUDGET_S and not arguments.deep:
        print(f"\ncheck.sh: warning: {processor_s:.0f} s of processors, {PROCESSOR_BUDGET_S:.0f} "
              f"are planned; {TIMES} has each stage")
    if not skips(skipped, arguments.require_all):
        return 1
    elapsed_s = time.monotonic() - check.began
    print(f"\ncheck.sh: all passed in {elapsed_s:.0f} s, {processor_s:.0f} s of processors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
