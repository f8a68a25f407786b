"""torch's collectives of objects, in one exchange where torch makes two or three.

torch exchanges the lengths of the pickles first, and then the pickles. Here, every rank sends a
frame: the length, and the pickle if it fits. Only longer pickles take a second exchange.

`install` puts these functions in the place of torch's, for groups whose host memory ringfold moves;
for other groups, torch's functions are called. The replaced functions are those inside of the
wrappers that torch makes for its log. So they change for all callers, also for those that have
imported a function by its name, and all ranks make the same calls.

Everything but the exchanges is as in torch: ranks, errors, and pickling by `_pickler` and
`_unpickler` of torch, or for `weights_only` by `torch.save` and `torch.load`. As in torch, an
object that cannot be pickled raises before anything is sent.
"""

import functools
import inspect
import io
import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ringfold.errors import InvalidArgumentError
from ringfold.torch.collectives import Collectives

_FRAME_BYTES = 4096
"""The size of a frame, unless there are many ranks."""
_FRAMES_BYTES = 1 << 16
"""The size of all ranks' frames together, unless there are very many ranks."""
_LEAST_FRAME_BYTES = 512
_HEAD = struct.Struct("<qq")
"""The head of a frame: two numbers, whose meaning depends on the collective."""
_LENGTH = struct.Struct("<q")

Bytes = bytes | bytearray | memoryview


@functools.cache
def install() -> None:
    """Replace torch's functions, once per process.

    A function that has other parameters than the known ones is left as it is: its callers may mean
    something that the replacement does not do.
    """
    for name, ours in _REPLACEMENTS.items():
        logged = getattr(c10d, name)
        original = getattr(logged, "__wrapped__", None)
        for cell in getattr(logged, "__closure__", None) or ():
            if original is not None and cell.cell_contents is original:
                names = list(inspect.signature(original).parameters)
                if set(names) <= inspect.signature(ours).parameters.keys():
                    cell.cell_contents = _replacing(original, ours, names.index("group"))


def _replacing(original: Callable[..., Any], ours: Callable[..., Any], index: int) -> Any:
    """The function for all groups; `index` is the position of the argument `group`."""

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        group = _own(args[index] if len(args) > index else kwargs.get("group"))
        return original(*args, **kwargs) if group is None else ours(group, *args, **kwargs)

    return call


def _own(group: Any) -> Any:
    """The group, if this rank is a member and ringfold moves the group's host memory."""
    if group is None:
        group = c10d.GroupMember.WORLD
    if isinstance(group, Collectives):
        return group
    if not isinstance(group, dist.ProcessGroup):
        return None
    try:
        backend = group._get_backend(torch.device("cpu"))
    except RuntimeError:
        # The group has no backend for the host.
        return None
    return group if isinstance(backend, Collectives) else None


def all_gather_object(
    own: Any, object_list: list[Any], obj: Any, group: Any = None, weights_only: bool = False
) -> None:
    """Fill `object_list` with copies of all ranks' objects."""
    data = _dumped(obj, weights_only)
    room, lengths, frames = _framed(own, data)
    if max(lengths) > room:
        whole = _empty(sum(lengths))
        parts = list(whole.split(lengths))
        own.allgather([parts], [_tensor(data)], _options(c10d.AllgatherOptions)).wait()
        frames = [_view(part) for part in parts]
    for index, (frame, length) in enumerate(zip(frames, lengths, strict=True)):
        object_list[index] = _loaded(frame[:length], weights_only)


def gather_object(
    own: Any,
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int | None = None,
    group: Any = None,
    group_dst: int | None = None,
    weights_only: bool = False,
) -> None:
    """Fill the root's list with copies of all ranks' objects."""
    root = _root(own, dst, group_dst)
    rank, ranks = own.rank(), own.size()
    c10d._validate_output_list_for_rank(rank, root, object_gather_list)
    data = _dumped(obj, weights_only)
    # All ranks need the lengths, to know whether there is a second exchange.
    room, lengths, frames = _framed(own, data)
    longest = max(lengths)
    if longest > room:
        given = _empty(longest)
        given[: len(data)] = _tensor(data)
        whole = _empty(longest * ranks if rank == root else 0)
        parts = list(whole.split(longest))
        options = _options(c10d.GatherOptions, root)
        own.gather([parts] if rank == root else [], [given], options).wait()
        frames = [_view(part) for part in parts]
    if object_gather_list is not None:
        for index, (frame, length) in enumerate(zip(frames, lengths, strict=True)):
            object_gather_list[index] = _loaded(frame[:length], weights_only)


def broadcast_object_list(
    own: Any,
    object_list: list[Any],
    src: int | None = None,
    group: Any = None,
    device: Any = None,
    group_src: int | None = None,
    weights_only: bool = False,
) -> None:
    """Fill other ranks' lists with copies of the root's objects. Objects travel through the host,
    whatever the device.
    """
    root = _root(own, src, group_src)
    if not object_list:
        raise ValueError("cannot broadcast an empty list of objects")
    is_root = own.rank() == root
    frame, data = bytearray(_FRAME_BYTES), bytearray()
    if is_root:
        pickles = [_dumped(thing, weights_only) for thing in object_list]
        lengths = (_LENGTH.pack(len(pickle)) for pickle in pickles)
        data = data.join((*lengths, *pickles))
        _HEAD.pack_into(frame, 0, len(pickles), len(data))
        if _HEAD.size + len(data) <= len(frame):
            frame[_HEAD.size : _HEAD.size + len(data)] = data
    _broadcast(own, _tensor(frame), root)
    count, size = _HEAD.unpack_from(frame)
    found = memoryview(frame)[_HEAD.size :]
    if size > len(found):
        whole = _tensor(data) if is_root else _empty(size)
        _broadcast(own, whole, root)
        found = _view(whole)
    if is_root:
        return
    if count != len(object_list):
        raise InvalidArgumentError(
            f"a list of {len(object_list)} for {count} objects from rank {root}; pass lists of "
            "equal lengths on all ranks"
        )
    begin = count * _LENGTH.size
    for index in range(count):
        (length,) = _LENGTH.unpack_from(found, index * _LENGTH.size)
        object_list[index] = _loaded(found[begin : begin + length], weights_only)
        begin += length


def scatter_object_list(
    own: Any,
    scatter_object_output_list: list[Any],
    scatter_object_input_list: Sequence[Any] | None = None,
    src: int | None = None,
    group: Any = None,
    group_src: int | None = None,
    weights_only: bool = False,
) -> None:
    """Set the first element of every rank's output list to a copy of the root's object for it."""
    root = _root(own, src, group_src)
    if not isinstance(scatter_object_output_list, list) or not scatter_object_output_list:
        raise ValueError(
            "Expected argument scatter_object_output_list to be a list of size at least 1."
        )
    is_root = own.rank() == root
    pickles: list[Bytes] = []
    if is_root:
        if scatter_object_input_list is None:
            raise ValueError("source rank must provide non-None scatter_object_input_list")
        if len(scatter_object_input_list) != own.size():
            raise ValueError(
                f"scatter_object_input_list has {len(scatter_object_input_list)} objects for "
                f"{own.size()} ranks"
            )
        pickles = [_dumped(thing, weights_only) for thing in scatter_object_input_list]
    longest = max(map(len, pickles), default=0)
    heads = [_HEAD.pack(len(pickle), longest) for pickle in pickles]
    frame = _scattered(own, root, _frame_bytes(own), heads, pickles)
    length, longest = _HEAD.unpack_from(frame)
    found = frame[_HEAD.size :]
    if longest > len(found):
        found = _scattered(own, root, longest, [b""] * len(pickles), pickles)
    scatter_object_output_list[0] = _loaded(found[:length], weights_only)


_REPLACEMENTS: dict[str, Callable[..., None]] = {
    each.__name__: each
    for each in (all_gather_object, gather_object, broadcast_object_list, scatter_object_list)
}


def _framed(own: Any, data: Bytes) -> tuple[int, list[int], list[memoryview]]:
    """The room for a pickle in a frame, the lengths of all ranks' pickles, and those that fit."""
    size, ranks = _frame_bytes(own), own.size()
    room = size - _LENGTH.size
    frame, frames = bytearray(size), bytearray(size * ranks)
    _LENGTH.pack_into(frame, 0, len(data))
    if len(data) <= room:
        frame[_LENGTH.size : _LENGTH.size + len(data)] = data
    parts = list(_tensor(frames).split(size))
    own.allgather([parts], [_tensor(frame)], _options(c10d.AllgatherOptions)).wait()
    view = memoryview(frames)
    lengths = [_LENGTH.unpack_from(frames, begin)[0] for begin in range(0, len(frames), size)]
    return room, lengths, [
        view[begin + _LENGTH.size : begin + size] for begin in range(0, len(frames), size)
    ]


def _scattered(
    own: Any, root: int, size: int, heads: Sequence[bytes], pickles: Sequence[Bytes]
) -> memoryview:
    """This rank's part of a scatter of parts of `size`: a head, and a pickle if it fits."""
    whole = bytearray(size * len(pickles))
    for begin, head, pickle in zip(range(0, len(whole), size), heads, pickles, strict=True):
        part = head + pickle if len(head) + len(pickle) <= size else head
        whole[begin : begin + len(part)] = part
    inputs = [list(_tensor(whole).split(size))] if pickles else []
    output = _empty(size)
    own.scatter([output], inputs, _options(c10d.ScatterOptions, root)).wait()
    return _view(output)


def _broadcast(own: Any, tensor: torch.Tensor, root: int) -> None:
    own.broadcast([tensor], _options(c10d.BroadcastOptions, root)).wait()


def _frame_bytes(own: Any) -> int:
    """The size of a frame, the same on all ranks."""
    ranks: int = own.size()
    return max(_LEAST_FRAME_BYTES, min(_FRAME_BYTES, _FRAMES_BYTES // ranks))


def _root(own: Any, rank: int | None, group_rank: int | None) -> int:
    """The root's rank in the group; by default, the rank 0 of the job."""
    rank = 0 if rank is None and group_rank is None else rank
    root: int = c10d._canonicalize_group_rank(own, rank, group_rank, return_global=False)
    return root


def _options(kind: type, root: int | None = None) -> Any:
    """Options of a call that waits for its result."""
    options: Any = kind()
    options.asyncOp = False
    if root is not None:
        options.rootRank = root
    return options


def _dumped(thing: Any, weights_only: bool) -> memoryview:
    file = io.BytesIO()
    if weights_only:
        torch.save(thing, file)
    else:
        c10d._pickler(file).dump(thing)
    return file.getbuffer()


def _loaded(data: memoryview, weights_only: bool) -> Any:
    file = io.BytesIO(data)
    return torch.load(file, weights_only=True) if weights_only else c10d._unpickler(file).load()


def _tensor(data: bytearray | memoryview) -> torch.Tensor:
    """The bytes as a tensor, without a copy."""
    # torch makes no tensor of an empty buffer.
    return torch.frombuffer(data, dtype=torch.uint8) if data else _empty(0)


def _empty(size: int) -> torch.Tensor:
    """Bytes on the host, whatever torch's default device."""
    return torch.empty(size, dtype=torch.uint8, device="cpu")


def _view(tensor: torch.Tensor) -> memoryview:
    """The tensor's bytes, without a copy."""
    return memoryview(tensor.numpy())
