"""Load and query a tuner plugin with NCCL's own code, without a GPU. Prints JSON.

    nccl_program.py LIBNCCL PLUGIN MEMBERS

A communicator needs a GPU, and NCCL loads the plugin only after it has found one. But the functions
that load the plugin, and those that translate between versions of the interface, need no GPU. The
library does not export them, but the package's library keeps its symbol table. This program passes
zeroed memory as the communicator to `ncclTunerPluginLoad`, which writes two of its members. MEMBERS
is JSON: the offsets of the members of NCCL's structures. With MEMBERS, this program fills in the
members that NCCL's choice reads, and has NCCL choose an algorithm, too.
"""

import ctypes
import json
import mmap
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

TREE, RING, NVLS, PAT = 0, 1, 4, 6
LL, LL128, SIMPLE = 0, 1, 2
BROADCAST, ALL_REDUCE = 0, 4
ALGORITHMS, PROTOCOLS = 7, 3
IGNORED = -1.0
# More than the size of any release's communicator.
COMMUNICATOR_BYTES = 1 << 22

Table = ctypes.c_float * PROTOCOLS * ALGORITHMS
Constants = ctypes.c_double * 144


class Domains(ctypes.Structure):
    _fields_ = [("count", ctypes.c_int), ("ranks_min", ctypes.c_int), ("ranks_max", ctypes.c_int)]


class Tuner(ctypes.Structure):
    """NCCL's internal tuner structure for plugins of every version.

    The layout is that of version 5; version 6 adds a member at the end.
    """

    _fields_ = [
        ("name", ctypes.c_char_p),
        (
            "init",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                ctypes.POINTER(ctypes.c_void_p),
                ctypes.c_uint64,
                ctypes.c_size_t,
                ctypes.c_size_t,
                ctypes.c_void_p,
                ctypes.POINTER(Domains),
                ctypes.POINTER(Constants),
            ),
        ),
        (
            "price",
            ctypes.CFUNCTYPE(
                ctypes.c_int,
                ctypes.c_void_p,
                ctypes.c_int,
                ctypes.c_size_t,
                ctypes.c_int,
                ctypes.POINTER(Table),
                ctypes.c_int,
                ctypes.c_int,
                ctypes.c_int,
                ctypes.POINTER(ctypes.c_int),
            ),
        ),
        ("finish", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)),
    ]


def symbols(path: Path) -> dict[str, tuple[int, int]]:
    """Return the address and size of each symbol of a 64-bit ELF file; of equal names, the last."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
        (offset,) = struct.unpack_from("<Q", image, 0x28)
        size, count = struct.unpack_from("<HH", image, 0x3A)
        sections = [
            struct.unpack_from("<IIQQQQIIQQ", image, offset + index * size)
            for index in range(count)
        ]
        found = {}
        for section in sections:
            if section[1] != 2:  # SHT_SYMTAB
                continue
            names = sections[section[6]]
            text = image[names[4] : names[4] + names[5]]
            for name, _, _, _, value, bytes_ in struct.iter_unpack(
                "<IBBHQQ", image[section[4] : section[4] + section[5]]
            ):
                found[text[name : text.index(b"\0", name)].decode()] = (value, bytes_)
        return found


def ask(tuner: Tuner, log: int, constants: bytes) -> dict[str, Any]:
    """Query a plugin through NCCL's structure: its codes, and its entries and channels by name."""
    context = ctypes.c_void_p()
    edited = Constants.from_buffer_copy(constants)
    domains = Domains(1, 8, 8)
    codes = [tuner.init(context, 7, 8, 1, log, domains, edited)]
    answers = {}
    for name, function, bytes_, usable in [
        ("small", ALL_REDUCE, 1024, [(TREE, LL), (RING, LL), (RING, SIMPLE)]),
        ("large", ALL_REDUCE, 1 << 20, [(TREE, SIMPLE), (RING, LL128), (RING, SIMPLE)]),
        ("without", ALL_REDUCE, 1024, [(RING, LL), (RING, SIMPLE)]),
        ("other", BROADCAST, 1024, [(RING, LL), (RING, SIMPLE)]),
    ]:
        table, channels = Table(), ctypes.c_int(0)
        for algorithm in range(ALGORITHMS):
            for protocol in range(PROTOCOLS):
                table[algorithm][protocol] = 10.0 if (algorithm, protocol) in usable else IGNORED
        codes.append(
            tuner.price(context, function, bytes_, 1, table, ALGORITHMS, PROTOCOLS, 0, channels)
        )
        zeros = [[a, p] for a in range(ALGORITHMS) for p in range(PROTOCOLS) if table[a][p] == 0]
        answers[name] = [zeros, channels.value]
    codes.append(tuner.finish(context))
    return {"codes": codes, "answers": answers, "keeps_constants": bytes(edited) == constants}


def describe(communicator: int, members: dict[str, int]) -> None:
    """Fill in a communicator of 8 ranks on one host: trees favour small calls, rings large ones."""
    for name, count in {
        "nRanks": 8,
        "nNodes": 1,
        "localRanks": 8,
        "maxLocalRanks": 8,
        "nChannels": 16,
    }.items():
        ctypes.c_int.from_address(communicator + members[name]).value = count
    threads = (ctypes.c_int * PROTOCOLS * ALGORITHMS).from_address(
        communicator + members["maxThreads"]
    )
    thresholds = (ctypes.c_long * PROTOCOLS * ALGORITHMS).from_address(
        communicator + members["threadThresholds"]
    )
    by_way = ctypes.c_float * PROTOCOLS * ALGORITHMS * (ALL_REDUCE + 1)
    latencies = by_way.from_address(communicator + members["latencies"])
    bandwidths = by_way.from_address(communicator + members["bandwidths"])
    for protocol in range(PROTOCOLS):
        for algorithm in (TREE, RING):
            threads[algorithm][protocol], thresholds[algorithm][protocol] = 512, 8
        for function in (BROADCAST, ALL_REDUCE):
            latencies[function][RING][protocol], bandwidths[function][RING][protocol] = (
                14 + protocol,
                25 + 50 * protocol,
            )
        latencies[ALL_REDUCE][TREE][protocol], bandwidths[ALL_REDUCE][TREE][protocol] = (
            8 + protocol,
            20,
        )


def choose(
    decide: Callable[..., int], communicator: int, members: dict[str, int]
) -> dict[str, list[int]]:
    """Return NCCL's choice for each call: its code, algorithm, protocol and channels."""
    chosen = {}
    calls = {
        "small": (ALL_REDUCE, 1024),
        "large": (ALL_REDUCE, 1 << 20),
        "other": (BROADCAST, 1 << 20),
    }
    for name, (function, bytes_) in calls.items():
        call = ctypes.create_string_buffer(COMMUNICATOR_BYTES)
        address = ctypes.addressof(call)
        ctypes.c_int.from_address(address + members["func"]).value = function
        ctypes.c_size_t.from_address(address + members["count"]).value = bytes_
        code = decide(communicator, address, 0, 0, 1, None)
        answer = [address + members[word] for word in ("algorithm", "protocol", "nMaxChannels")]
        chosen[name] = [code, *(ctypes.c_int8.from_address(byte).value for byte in answer)]
    return chosen


def choose_by_rules(
    table: dict[str, tuple[int, int]],
    function: Callable[..., Callable[..., Any]],
    communicator: ctypes.Array[ctypes.c_char],
    tuner: Tuner,
    log: int,
    members: dict[str, int],
) -> dict[str, Any]:
    """Return NCCL's choices without and with the plugin.

    The result is empty if the library lacks the function or the members are unknown.
    """
    found = (name for name in table if name.startswith("_Z15ncclGetAlgoInfoP8ncclComm"))
    decide = next(found, None)
    if not members or not decide:
        return {}
    start, pointer, number = ctypes.addressof(communicator), ctypes.c_void_p, ctypes.c_int
    describe(start, members)
    in_use, context = (
        pointer.from_address(start + members[name]) for name in ("tuner", "tunerContext")
    )
    choice = function(decide, number, pointer, pointer, number, number, number, pointer)
    loaded, in_use.value = in_use.value, None
    without = choose(choice, start, members)
    in_use.value = loaded
    context_address = ctypes.cast(ctypes.addressof(context), ctypes.POINTER(pointer))
    tuner.init(context_address, 7, 8, 1, log, None, None)
    chosen = choose(choice, start, members)
    tuner.finish(context)
    return {"chosen_without": without, "chosen": chosen}


def main(libnccl: str, plugin: str, members_text: str) -> None:
    library = ctypes.CDLL(libnccl)
    table = symbols(Path(libnccl))
    base = (ctypes.cast(library.ncclGetVersion, ctypes.c_void_p).value or 0) - table.get(
        "ncclGetVersion", (0, 0)
    )[0]

    def function(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        return ctypes.CFUNCTYPE(result, *arguments)(base + table[name][0])

    report: dict[str, Any] = {}
    version = ctypes.c_int()
    report["codes"] = [library.ncclGetVersion(ctypes.byref(version))]
    report["version"] = version.value
    # ncclGetUniqueId also reads the environment, which loading a plugin requires; it needs no GPU.
    report["codes"].append(library.ncclGetUniqueId(ctypes.create_string_buffer(128)))
    needed = [
        "_Z19ncclTunerPluginLoadP8ncclComm",
        "_Z21ncclTunerPluginUnloadP8ncclComm",
        "_ZL26ncclTunerConstantsDefaults",
    ]
    needed += ["_Z12ncclDebugLog17ncclDebugLogLevelmPKciS1_z", "_Z22ncclOpenTunerPluginLibPKc"]
    versions = [number for number in range(2, 10) if f"_Z15getNcclTuner_v{number}Pv" in table]
    report["missing"] = [name for name in needed if name not in table]
    if report["missing"]:
        print(json.dumps(report))
        return
    address, report["constants_bytes"] = table["_ZL26ncclTunerConstantsDefaults"]
    constants = ctypes.string_at(base + address, report["constants_bytes"])
    log = base + table["_Z12ncclDebugLog17ncclDebugLogLevelmPKciS1_z"][0]

    communicator = ctypes.create_string_buffer(COMMUNICATOR_BYTES)
    report["load"] = function(needed[0], ctypes.c_int, ctypes.c_void_p)(communicator)
    written = [word for (word,) in struct.iter_unpack("<Q", communicator.raw) if word]
    # The two values written are a pointer to the structure, and a flag.
    tuner = Tuner.from_address(max(written))
    report["name"] = tuner.name.decode()
    report["loaded"] = ask(tuner, log, constants)
    report |= choose_by_rules(table, function, communicator, tuner, log, json.loads(members_text))
    report["unload"] = function(needed[1], ctypes.c_int, ctypes.c_void_p)(communicator)

    handle = function("_Z22ncclOpenTunerPluginLibPKc", ctypes.c_void_p, ctypes.c_char_p)(
        plugin.encode()
    )
    report["versions"] = {}
    for number in versions:
        found = function(f"_Z15getNcclTuner_v{number}Pv", ctypes.c_void_p, ctypes.c_void_p)(handle)
        report["versions"][number] = ask(Tuner.from_address(found), log, constants)
    print(json.dumps(report))


main(*sys.argv[1:])
