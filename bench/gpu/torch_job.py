"""One rank of a job of `bench/gpu.sh` that needs torch.

Usage: torch_job.py JOB name=value...    Rank 0 prints lines of CSV: name, setting, value, unit.

Ranks share the first GPU. `device=cpu` has the jobs that only use torch's own interface run without
one, and `device=TYPE module=NAME` all of them on the device that the module's `load` gives torch.
Everything is measured on the slowest rank.
"""

import ctypes
import gc
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import ringfold
from ringfold._lane import DeviceRequest, DeviceWork, Lane

KIB, MIB = 1 << 10, 1 << 20
FLOAT_BYTES = 4
RANK = int(os.environ["RINGFOLD_RANK"])
WORLD_SIZE = int(os.environ["RINGFOLD_WORLD_SIZE"])
# A kernel that is not done by then is held back.
LIMIT_S = 0.3


def word(name: str, default: str) -> str:
    """The value of an argument."""
    words = dict(argument.split("=", 1) for argument in sys.argv[2:])
    return words.get(name, default)


def size(text: str) -> int:
    """A number of bytes with an optional suffix."""
    units = {"K": KIB, "M": MIB}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def device() -> torch.device:
    """The first device of the type that is asked for."""
    if module := word("module", ""):
        import_module(module).load()
    kind = word("device", "cuda")
    return torch.device(kind) if kind == "cpu" else torch.device(kind, 0)


DEVICE = device()
# What is multiplied, and what is summed beside it.
WIDTH, PRODUCTS = int(word("width", "8192")), int(word("products", "200"))
CALL_BYTES = size(word("bytes", "64M"))


def say(name: str, setting: str, value: float, unit: str) -> None:
    if RANK == 0:
        print(f"{name},{setting},{value:.3f},{unit}", flush=True)


def synchronize() -> None:
    if DEVICE.type != "cpu":
        torch.accelerator.synchronize()


def side_stream() -> Any:
    """A stream as a context; nothing on the CPU."""
    return nullcontext() if DEVICE.type == "cpu" else torch.Stream(DEVICE)


@contextmanager
def lane() -> Iterator[tuple[ringfold.Communicator, Lane]]:
    """A lane to the GPU."""
    with ringfold.init() as communicator, Lane(communicator, device=0) as made:
        yield communicator, made


def current() -> int:
    """The driver's handle of the current stream."""
    if DEVICE.type == "cuda":
        return int(torch.cuda.current_stream().cuda_stream)
    return int(torch.accelerator.current_stream().native_handle)


def enqueue(made: Lane, tensor: Any) -> DeviceWork:
    """An all-reduce in place behind the current stream."""
    place = [(tensor.data_ptr(), tensor.nbytes)]
    request = DeviceRequest("all_reduce", "float32", tensor.numel(), place, place)
    return made.enqueue([request], current())


def factors() -> list[Any]:
    """Two matrices."""
    random = torch.randn(2, WIDTH, WIDTH).to(torch.bfloat16).to(DEVICE)
    return list(random.unbind())


def slowest(communicator: ringfold.Communicator, value: float) -> float:
    return float(communicator.all_reduce(np.array([value]), "max")[0])


def kernels() -> None:
    """How many streams' kernels are late because one stream waits for a word."""
    driver = ctypes.CDLL(os.environ.get("RINGFOLD_CUDA_LIBRARY", "libcuda.so.1"))

    def call(name: str, *arguments: Any) -> None:
        code = getattr(driver, name)(*arguments)
        assert code == 0, f"{name} answers {code}"

    words = torch.zeros(2, dtype=torch.int32).pin_memory()
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxPushCurrent_v2", context)
    pinned = ctypes.c_void_p(words.data_ptr())
    call("cuMemHostGetDevicePointer_v2", ctypes.byref(address), pinned, 0)
    for count in (2, 4, 8, 16, 32):
        streams = [torch.Stream(DEVICE) for _ in range(count)]
        tensors = [torch.zeros(1024, device=DEVICE) for _ in streams]
        # Kernels are loaded at their first launch, which may synchronize.
        for tensor in tensors:
            tensor.add_(1)
        synchronize()
        words.zero_()
        with streams[0]:
            handle = ctypes.c_void_p(current())
        call("cuStreamWaitValue32_v2", handle, address, ctypes.c_uint32(1), 0)
        for stream, tensor in zip(streams[1:], tensors[1:], strict=True):
            with stream:
                tensor.add_(1)
        end = time.monotonic() + LIMIT_S
        late = count - 1
        while late and time.monotonic() < end:
            late = sum(not stream.query() for stream in streams[1:])
        words.fill_(1)
        synchronize()
        connections = os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "default")
        say("kernels held back", f"streams={count} connections={connections}", late, "streams")


def gloo() -> None:
    """All-reduces by torch over gloo, of sizes from `first` to `last`."""
    dist.init_process_group("gloo")
    bytes_, last = size(word("first", "4K")), size(word("last", "256M"))
    while bytes_ <= last:
        tensor = torch.zeros(bytes_ // FLOAT_BYTES, device=DEVICE)
        times = []
        for _ in range(int(word("times", "10")) + 1):
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(tensor)
            synchronize()
            times.append((time.perf_counter() - begin) * 1e6)
        of_all = torch.tensor(times[1:], dtype=torch.float64)
        dist.all_reduce(of_all, dist.ReduceOp.MAX)
        setting = f"bytes={bytes_} ranks={WORLD_SIZE}"
        say("gloo time", setting, statistics.median(of_all.tolist()), "us")
        bytes_ *= 4
    dist.destroy_process_group()


def beside() -> None:
    """Rank 0's matrix products, alone, and with all-reduces of all ranks beside them."""
    side = torch.Stream(DEVICE)
    pair = factors() if RANK == 0 else []
    out = torch.empty_like(pair[0]) if pair else None
    tensor = torch.zeros(CALL_BYTES // FLOAT_BYTES, device=DEVICE)

    def calls(made: Lane, count: int) -> None:
        with side:
            for _ in range(count):
                enqueue(made, tensor).join(current())

    def products(count: int, meanwhile: Callable[[], None]) -> float:
        """Milliseconds of `count` products, while another thread does something else."""
        done, other = torch.Event(DEVICE), threading.Thread(target=meanwhile)
        begin = time.perf_counter()
        for _ in range(count if pair else 0):
            torch.matmul(*pair, out=out)
        done.record()
        other.start()
        done.synchronize()
        taken = (time.perf_counter() - begin) * 1e3
        other.join()
        synchronize()
        return taken

    with lane() as (communicator, made):
        products(10, lambda: calls(made, 2))
        communicator.barrier()
        begin = time.perf_counter()
        calls(made, 5)
        synchronize()
        call_ms = slowest(communicator, (time.perf_counter() - begin) * 1e3 / 5)
        product_ms = slowest(communicator, products(PRODUCTS, lambda: None))
        # Computation ends before the calls beside it do.
        enough = int(1.5 * product_ms / call_ms) + 1
        alone, with_calls = [], []
        for _ in range(3):
            communicator.barrier()
            alone.append(slowest(communicator, products(PRODUCTS, lambda: None)))
            communicator.barrier()
            both = products(PRODUCTS, lambda: calls(made, enough))
            with_calls.append(slowest(communicator, both))
    setting = f"width={WIDTH} products={PRODUCTS} calls={enough}"
    say("matmul alone", setting, statistics.median(alone), "ms")
    say("matmul beside", setting, statistics.median(with_calls), "ms")


def returns() -> None:
    """How long the call itself takes, while the lane is idle."""
    tensor = torch.zeros(CALL_BYTES // FLOAT_BYTES, device=DEVICE)
    times = []
    with lane() as (communicator, made):
        for _ in range(30):
            communicator.barrier()
            begin = time.perf_counter()
            work = enqueue(made, tensor)
            times.append((time.perf_counter() - begin) * 1e6)
            work.join(current())
            synchronize()
        taken = slowest(communicator, statistics.median(times[5:]))
    say("call returns", f"bytes={CALL_BYTES}", taken, "us")


def lane_thread_ns() -> int:
    """Processor time of the lane's thread."""
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().strip() == "ringfold-lane":
            return int((task / "schedstat").read_text().split()[0])
    raise LookupError("this process has no lane's thread")


def waits() -> None:
    """Processor time of the lane's thread while the call is behind computation."""
    pair, tensor = factors(), torch.zeros(CALL_BYTES // FLOAT_BYTES, device=DEVICE)
    out = torch.empty_like(pair[0])
    with lane() as (communicator, made):
        enqueue(made, tensor).wait()
        torch.matmul(*pair, out=out)
        synchronize()
        communicator.barrier()
        computed = torch.Event(DEVICE)
        for _ in range(3 * PRODUCTS):
            torch.matmul(*pair, out=out)
        computed.record()
        work = enqueue(made, tensor)
        begin, used = time.monotonic_ns(), lane_thread_ns()
        while not computed.query():
            time.sleep(0.002)
        share = 100 * (lane_thread_ns() - used) / (time.monotonic_ns() - begin)
        work.wait()
        highest = slowest(communicator, share)
    say("lane thread", f"ranks={WORLD_SIZE}", highest, "% of a core")


def streams() -> None:
    """Asynchronous calls on a side stream, awaited on another one, with futures; their tensors are
    dropped and their memory reused at once, and all results are compared at the end.
    """
    dist.init_process_group("ringfold")
    rounds, count = int(word("rounds", "300")), int(word("count", "50000"))
    total = WORLD_SIZE * (WORLD_SIZE + 1) / 2
    producer, consumer = side_stream(), side_stream()
    kept = []
    for turn in range(rounds):
        with producer:
            # The allocator may hand out the memory of an earlier round.
            torch.full((count,), float("nan"), device=DEVICE)
            # Work that the call must wait for.
            tensor = torch.zeros(count, device=DEVICE)
            for _ in range(5):
                tensor.add_((RANK + 1) * (turn % 7 + 1) / 5)
            tensor = tensor.round()
            work = dist.all_reduce(tensor, async_op=True)
            doubled = work.get_future().then(lambda future: future.value()[0] * 2)
        with consumer:
            work.wait()
            copied = tensor.clone()
            if DEVICE.type != "cpu":
                tensor.record_stream(consumer)
            doubled.wait()
            kept.append((turn, copied, doubled.value().clone()))
        del tensor, work, doubled
        if turn % 50 == 0:
            gc.collect()
    synchronize()
    wrong = 0
    for turn, copied, doubled in kept:
        expected = total * (turn % 7 + 1)
        wrong += int(not bool((copied.cpu() == expected).all()))
        wrong += int(not bool((doubled.cpu() == 2 * expected).all()))
    of_all = torch.tensor([wrong])
    dist.all_reduce(of_all)
    say("streams wrong", f"rounds={rounds} ranks={WORLD_SIZE}", float(of_all), "tensors")
    dist.destroy_process_group()


def network(device: torch.device) -> Any:
    torch.manual_seed(7)
    widths = (64, 257, 129, 10)
    layers: list[Any] = []
    for into, out in zip(widths, widths[1:], strict=False):
        layers += [torch.nn.Linear(into, out), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1]).to(device)


def train(model: Any, device: torch.device, steps: int = 10) -> float:
    """The last loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    chance = torch.Generator().manual_seed(RANK)
    loss = torch.zeros(())
    for _ in range(steps):
        inputs = torch.randn(32, 64, generator=chance).to(device)
        labels = torch.randint(10, (32,), generator=chance).to(device)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def over_gloo() -> list[Any]:
    """The parameters after training over gloo, on the host if that does not serve the device."""
    device = DEVICE if DEVICE.type == "cuda" else torch.device("cpu")
    group = dist.new_group(backend="gloo")
    model = torch.nn.parallel.DistributedDataParallel(network(device), process_group=group)
    train(model, device)
    return [parameter.detach().cpu() for parameter in model.parameters()]


def compare(name: str, loss: float, ours: list[Any], tolerance: float) -> None:
    """How many elements differ from those of gloo by more than rounding."""
    differ = sum(
        int((~torch.isclose(one.cpu(), other, rtol=tolerance, atol=tolerance)).sum())
        for one, other in zip(ours, over_gloo(), strict=True)
    )
    of_all = torch.tensor([differ])
    dist.all_reduce(of_all)
    setting = f"ranks={WORLD_SIZE} tolerance={tolerance}"
    say(f"{name} differs", setting, float(of_all), "parameters")
    say(f"{name} loss", setting, loss, "")


def ddp() -> None:
    """DistributedDataParallel: two ranks get the same bits as over gloo."""
    dist.init_process_group("ringfold")
    model = torch.nn.parallel.DistributedDataParallel(network(DEVICE), bucket_cap_mb=0.05)
    loss = train(model, DEVICE)
    ours = [parameter.detach() for parameter in model.parameters()]
    # The sum of two numbers is the same in any order.
    compare("ddp", loss, ours, 0.0 if WORLD_SIZE == 2 else 1e-5)
    dist.destroy_process_group()


def fsdp() -> None:
    """FSDP2: the gathered parameters are those of DistributedDataParallel."""
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("ringfold")
    mesh = dist.device_mesh.init_device_mesh(DEVICE.type, (WORLD_SIZE,))
    model = network(DEVICE)
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    loss = train(fully_shard(model, mesh=mesh), DEVICE)
    ours = [parameter.full_tensor().detach() for parameter in model.parameters()]
    compare("fsdp", loss, ours, 1e-5)
    dist.destroy_process_group()


JOBS = {
    job.__name__: job
    for job in (kernels, gloo, beside, returns, waits, streams, ddp, fsdp)
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    if DEVICE.type != "cpu":
        torch.accelerator.set_device_index(0)
    JOBS[sys.argv[1]]()
