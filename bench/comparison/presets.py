"""Named sets of sizes, ranks and libraries. Flags override the preset."""

from dataclasses import dataclass, replace

from comparison.collectives import COLLECTIVES, Collective

KIB, MIB = 1 << 10, 1 << 20
ALL_PEERS = ("impi", "openmpi", "mpich", "gloo")


@dataclass(frozen=True)
class Preset:
    collective: Collective = COLLECTIVES["all_reduce"]
    ranks: tuple[int, ...] = (2,)
    # None means the sweep of --min, --max and --factor.
    sizes: tuple[int, ...] | None = None
    rounds: int = 3
    # Iterations in each run and placement; None means as many as fit in the time.
    iterations: int | None = None
    peers: tuple[str, ...] = ALL_PEERS
    # Algorithms of ringfold that have their own rows.
    algorithms: tuple[str, ...] = ()


IN_PLACE = replace(COLLECTIVES["all_reduce"], placements=("in",))

PRESETS = {
    "sweep": Preset(),
    # Between hosts: only one placement, because each start takes longer than the calls.
    "hosts": Preset(
        collective=IN_PLACE,
        sizes=(8, 4 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB),
    ),
    # The reference sizes for the fastest all-reduce within one host.
    "table": Preset(
        sizes=(
            8,
            256,
            4 * KIB,
            16 * KIB,
            64 * KIB,
            256 * KIB,
            MIB,
            4 * MIB,
            16 * MIB,
            64 * MIB,
            256 * MIB,
        ),
        rounds=4,
    ),
    # Preferred Networks' figure of 2018: ten runs at 256 MB, median and interval, including
    # baidu-allreduce's blocking ring over MPI. Each run is a process' second call; the first call
    # is a column of its own.
    "pfn": Preset(sizes=(256 * MIB,), rounds=10, iterations=1, peers=(*ALL_PEERS, "openmpi-ring")),
    # A course's exercise: an in-place all-reduce by a master that reduces and broadcasts, and by a
    # ring. MPICH is left out because it spins for minutes if ranks outnumber cores.
    "lab": Preset(
        collective=IN_PLACE,
        ranks=(4, 8, 16),
        sizes=(4 * MIB, 8 * MIB, 16 * MIB, 32 * MIB, 100 * MIB),
        peers=("impi", "openmpi", "gloo", "openmpi-ring"),
        algorithms=("flat", "ring"),
    ),
}
