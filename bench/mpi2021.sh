#!/usr/bin/env bash
# The table of "Implementing All-Reduce with MPI" (2021) on this machine: all_reduce by master and
# worker and by the ring, 4, 8 and 16 ranks, 4 to 100 MB. See docs/explanation/papers.md.
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
--help | -h)
    echo "usage: bench/mpi2021.sh [FILE.csv]"
    echo "Measures with the release build and prints medians in seconds, in place; writes all rows as CSV."
    exit
    ;;
esac
out=${1:-mpi2021.csv}
ringfold=${RINGFOLD:-target/release/ringfold}
[ -x "$ringfold" ] || cargo build --quiet --release --package ringfold-cli

rows=$(mktemp)
trap 'rm -f "$rows"' EXIT
: >"$out"
for algorithm in flat ring; do
    for ranks in 4 8 16; do
        # Megabytes of the report are taken as 10^6 bytes.
        for sizes in "-b 4000000 -e 32000000" "-b 100000000 -e 100000000"; do
            # shellcheck disable=SC2086
            "$ringfold" perf all_reduce --ranks "$ranks" --algorithm "$algorithm" $sizes -n 5 --csv "$rows" >/dev/null
            # One heading for the whole file.
            if [ -s "$out" ]; then tail -n +2 "$rows" >>"$out"; else cat "$rows" >"$out"; fi
        done
    done
done
awk -F, '
    NR > 1 && $9 == "true" {
        if ($2 != algorithm) { algorithm = $2; printf "%s\n%8s %12s %12s %12s %12s %12s", $2, "", "4 MB", "8 MB", "16 MB", "32 MB", "100 MB" }
        if ($2 $4 != line) { line = $2 $4; printf "\n%2d ranks", $4 }
        printf " %12.6f", $13 / 1e6
        if ($5 == 100000000 && $4 == 16) printf "\n"
    }' "$out"
echo "all rows are in $out"
