"""An endless program of calls on device memory of the software driver, drawn from a seed.

All ranks draw the same calls in the same order, and compare every result with the expected one.
Each rank draws its own ways to wait. After a fault, a rank checks all guarantees: `Program.end`.
"""

import contextlib
import ctypes
import gc
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import calls
import numpy as np
import softcuda
from calls import Call
from harness import Wrong

import ringfold
from ringfold._lane import DeviceRequest, DeviceWork, Lane

# Maximum number of elements of a call: with small slots, from none to dozens of slices.
COUNTS_MAX = 5000
# Maximum number of calls that are enqueued before the first wait.
UNDER_WAY = 3
PIECES = 3
# Time between two polls.
NAP_S = 0.0005
# Time for the device to finish a call after a fault.
DONE_S = 60.0
# Reason with which a rank aborts its other lanes.
SECOND = "after the fault of another lane"


@dataclass(frozen=True)
class Setup:
    """Configuration of all ranks' lanes, and of each rank's driver."""

    devices: tuple[int, ...]
    """Device of each lane of a rank."""
    lane: dict[str, Any]
    """Arguments of `Lane`."""
    drivers: tuple[dict[str, str], ...]
    """Settings of the software driver, by rank."""

    def enter(self, rank: int) -> None:
        """Make this process use the driver of a rank."""
        os.environ.update(self.drivers[rank])


@dataclass
class UnderWay:
    """An enqueued call, and its expected result."""

    call: Call
    work: DeviceWork
    program: softcuda.Program
    places: list[tuple[int, int]]
    due: Any | None

    def found(self) -> Any:
        """Return the contents of the result's memory."""
        assert self.due is not None
        parts = []
        for address, size in self.places:
            count = size // self.due.itemsize
            parts.append(self.program.download(address, np.empty(count, self.due.dtype)))
        return np.concatenate(parts) if parts else np.empty(0, self.due.dtype)

    def check(self, may_be_ones: bool) -> None:
        """Raise `Wrong` unless the result is right; elements with all bits set may be excused."""
        if self.due is None:
            return
        self.program.enter()
        found = self.found()
        self.program.leave()
        size = self.due.itemsize
        bytes_ = found.view(np.uint8).reshape(-1, size)
        is_right = (bytes_ == self.due.view(np.uint8).reshape(-1, size)).all(axis=1)
        if may_be_ones:
            is_right |= (bytes_ == 0xFF).all(axis=1)
        if not is_right.all():
            at = int(np.flatnonzero(~is_right)[0])
            raise Wrong(
                f"{self.call}: {found[at]} instead of {self.due[at]} at {at} of {len(found)}, "
                f"and {int((~is_right).sum())} in all"
            )


@dataclass
class Stepper:
    """Runs the driver's operations in stepped mode, and acts after some of them."""

    is_stepped: bool
    left: int = -1
    """Number of operations until `act` is called; never if negative."""
    act: Callable[[], None] = field(default=lambda: None)

    def step(self, program: softcuda.Program) -> None:
        """Run an operation, or wait a moment."""
        if not self.is_stepped or not program.step():
            time.sleep(NAP_S)
            return
        self.left -= 1
        if self.left == 0:
            self.act()


class Program:
    """The lanes of one rank, and its calls on them."""

    def __init__(self, comm: ringfold.Communicator, setup: Setup, seed: int) -> None:
        self.comm, self.setup = comm, setup
        self.random, self.own = random.Random(seed), random.Random(f"{seed} {comm.rank}")
        self.stepper = Stepper(setup.drivers[comm.rank].get("SOFTCUDA_MODE") == "stepped")
        self.programs = []
        for device in sorted(set(setup.devices)):
            self.programs.append(softcuda.Program(device))
            self.programs[-1].leave()
        self.lanes: list[Lane] = []
        self.under_way: list[UnderWay] = []
        self.odd: Callable[[Call], Call] | None = None
        """Function that makes this rank's next call a different one."""
        for device in setup.devices:
            self.beside(lambda: self.lanes.append(Lane(comm, device, **setup.lane)))

    def step(self) -> None:
        """Make a few calls, and check their results."""
        self.begin()
        self.finish()

    def begin(self) -> None:
        """Enqueue a few calls."""
        for _ in range(self.random.randint(1, UNDER_WAY)):
            lane = self.random.randrange(len(self.lanes))
            call = self._drawn()
            in_place, pieces = self.random.random() < 0.5, self.random.randint(1, PIECES)
            self.enqueue(lane, call, in_place, pieces)

    def finish(self) -> None:
        """Wait for all calls in progress, and check them."""
        while self.under_way:
            one = self.under_way[0]
            self.wait(one)
            try:
                one.check(may_be_ones=False)
            except Wrong as wrong:
                # There may be a fault of which this rank does not know yet.
                if self._fault(awaited=True) is None:
                    raise wrong
                one.check(may_be_ones=True)
            del self.under_way[0]

    def _drawn(self) -> Call:
        call = calls.drawn(self.random, self.comm.world_size, most=COUNTS_MAX)
        if self.odd is None:
            return call
        other = self.odd(call)
        if other is not call:
            self.odd = None
        return other

    def enqueue(self, index: int, call: Call, in_place: bool, pieces: int) -> None:
        """Enqueue a call on new memory."""
        lane, rank = self.lanes[index], self.comm.rank
        program = self._programs_of_lanes()[index]
        due = call.due(rank)
        given = call.input(rank)
        if call.collective == "broadcast" and rank != call.root:
            given = given[:0]
        if call.collective == "scatter" and rank != call.root:
            given = given[:0]
        in_place &= due is not None and call.collective in ("all_reduce", "broadcast")
        program.enter()
        try:
            # The result's memory begins with values that are never a result.
            before = None if due is None else np.full_like(due, 55)
            if in_place and len(given) > 0:
                before = given
            output = [] if before is None else uploaded(program, before, pieces)
            is_same = in_place and len(given) > 0
            input_ = output if is_same else uploaded(program, given, pieces)
        finally:
            program.leave()
        work = lane.enqueue([requested(call, rank, input_, output)], program.stream)
        self.under_way.append(UnderWay(call, work, program, output, due))

    def wait(self, one: UnderWay) -> None:
        """Wait until a call is done, in one of several ways."""
        way = self.own.randrange(4)
        if self.stepper.is_stepped or way == 0:
            while not one.work.done():
                self.stepper.step(one.program)
            one.work.wait()
        if way == 1:
            one.work.wait()
        if way in (2, 3):
            one.work.join(one.program.stream)
        if way == 2:
            one.program.call("cuStreamSynchronize", ctypes.c_void_p(one.program.stream))
        if way == 3:
            while not one.work.wait(0.01):
                pass

    def end(self, may_be_second: bool = False) -> BaseException | None:
        """Check all guarantees after a fault of any lane, and return the fault.

        With `may_be_second`, the fault may be one of lanes that a peer ended because of another
        fault.
        """
        fault = self._fault(may_be_second=may_be_second)
        for lane in self.lanes:
            # Calls that the peers no longer join would last until the deadline.
            if lane.fault() is None:
                lane.abort(SECOND)
        for one in self.under_way:
            begin = time.monotonic()
            while not one.work.done():
                if time.monotonic() > begin + DONE_S:
                    raise Wrong(f"{one.call} is not done after {fault}")
                self.stepper.step(one.program)
            one.check(may_be_ones=True)
        for lane, program in zip(self.lanes, self._programs_of_lanes(), strict=True):
            try:
                lane.enqueue([DeviceRequest("all_reduce", "float32", 0, [], [])], program.stream)
                raise Wrong(f"a call succeeded after {fault}")
            except ringfold.RingfoldError as later:
                if type(later) is not type(lane.fault()):
                    raise Wrong(f"a call raises {later} after {lane.fault()}") from later
        return fault

    def _fault(
        self, awaited: bool = False, may_be_second: bool = False
    ) -> BaseException | None:
        """Return the first fault of a lane, not one of lanes that ended because of it."""
        begin = time.monotonic()
        while time.monotonic() < begin + DONE_S:
            faults = [fault for lane in self.lanes if (fault := lane.fault())]
            first = [fault for fault in faults if may_be_second or SECOND not in str(fault)]
            if first:
                return first[0]
            if not faults and not awaited:
                return None
            time.sleep(NAP_S)
        if awaited:
            return None
        raise Wrong("lanes ended because of a fault that no lane has")

    def _programs_of_lanes(self) -> list[softcuda.Program]:
        known = sorted(set(self.setup.devices))
        return [self.programs[known.index(device)] for device in self.setup.devices]

    def drop(self) -> None:
        """Drop all lanes, and the calls in progress, which hold lanes, too."""
        self.beside(self.lanes.clear)
        self.beside(self.under_way.clear)

    def abort(self, reason: str) -> None:
        """End all lanes."""
        for lane in self.lanes:
            lane.abort(reason)

    def close(self) -> None:
        """Close all lanes, even those that have ended."""
        for lane in self.lanes:
            with contextlib.suppress(ringfold.RingfoldError):
                self.beside(lane.close)

    def beside(self, act: Callable[[], None]) -> None:
        """Act while this thread runs operations of the driver."""
        if not self.stepper.is_stepped:
            return act()
        raised: list[BaseException] = []

        def run() -> None:
            try:
                act()
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        while thread.is_alive():
            self.stepper.step(self.programs[0])
        if raised:
            raise raised[0]
        return None

    def left(self) -> dict[str, int]:
        """Return the driver's resources that remain after the lanes are gone.

        A thread that has just ended a lane may be the last to release it.
        """
        self.drop()
        gc.collect()
        begin = time.monotonic()
        while any(self._counts().values()) and time.monotonic() < begin + DONE_S:
            time.sleep(0.01)
        return self._counts()

    def _counts(self) -> dict[str, int]:
        program = self.programs[0]
        own = len(self.programs)
        return {
            "pinned": program.count("pinned") - own,
            "streams": program.count("streams") - own,
            "events": program.count("events"),
            "modules": program.count("modules"),
        }


def uploaded(program: softcuda.Program, content: Any, pieces: int) -> list[tuple[int, int]]:
    """Copy the content to new device memory, in pieces at arbitrary addresses."""
    parts = np.array_split(content, pieces)
    return [(program.upload(part), part.nbytes) for part in parts if part.nbytes > 0]


def requested(
    call: Call, rank: int, given: Sequence[tuple[int, int]], places: Sequence[tuple[int, int]]
) -> DeviceRequest:
    """Return the request of a rank, with memory at these places."""
    counts: Any = list(call.counts) if call.uneven else call.counts[0]
    if call.matrix:
        counts = (list(call.sent(rank)), call.received(rank))
    how: dict[str, Any] = {}
    if call.collective in calls.ROOTED:
        how["root"] = call.root
    if call.collective in calls.REDUCING:
        how["op"] = call.op
    return DeviceRequest(call.collective, call.dtype, counts, list(given), list(places), **how)
