#!/usr/bin/env bash
# Measures and tests ringfold on a real GPU, unattended: see usage.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

usage() {
    cat <<END
usage: gpu.sh {facts|right|fast|all} [--out FOLDER] [--only STEP] [--seconds S]
              [--programs FOLDER] [--no-torch] [--soft]

Three runs, each of less than ten minutes, on the first GPU that this process sees, which up to four
processes share. They need no network. Each criterion is a line: PASS, FAIL or SKIP, its name, what
was measured and what was asked. Figures are written as CSV. The exit status is 0 if nothing failed,
1 if something did, and 2 if a run could not begin. A step that hangs is ended, and is a failure.

  facts   what the GPU and its driver do: copies, words, calls beside a stream that waits
  right   results: all collectives, types and odd sizes; kills; torch against gloo; memcheck
  fast    speed: of the link's limit, against gloo, beside a matrix product

  --out FOLDER       where files go [default: bench/results/DATE-MACHINE]
  --only STEP        only the step with this name
  --seconds S        the time limit of a run [default: 570]; those of its steps in proportion
  --programs FOLDER  built programs instead of target/release: ringfold, examples/device_facts
  --no-torch         without the steps that need torch
  --soft             small sizes on the software driver: a test of this script, without a GPU. So is
                     every run whose RINGFOLD_CUDA_LIBRARY names that driver

Programs are built if cargo can do so offline; otherwise those in target/release are used, which
may be copied from elsewhere:

  cargo build --release -p ringfold-cli -p ringfold-softcuda
  cargo build --release -p ringfold --example device_facts
  maturin build --release --out target/wheels

The steps that need torch use PYTHON [default: python3], whose torch must see the GPU, and the newest
wheel of target/wheels, or the ringfold of this Python. Otherwise they are skipped.
END
}

# fail WORDS: the run cannot begin.
fail() {
    printf 'gpu.sh: %s\n' "$*" >&2
    exit 2
}

programs=$root/target/release
chosen=
soft=
arguments=()
while [ $# -gt 0 ]; do
    case $1 in
    --help | -h)
        usage
        exit
        ;;
    --soft) soft=1 ;;
    --no-torch) arguments+=("$1") ;;
    --programs | --out | --only | --seconds)
        [ -n "${2:-}" ] || fail "$1 needs a value; see gpu.sh --help"
        case $1 in
        --programs) programs=$(realpath -- "$2") chosen=1 ;;
        --out) arguments+=("$1" "$(realpath -m -- "$2")") ;;
        *) arguments+=("$1" "$2") ;;
        esac
        shift
        ;;
    facts | right | fast | all) arguments+=("$1") ;;
    *) fail "no run or option $1; see gpu.sh --help" ;;
    esac
    shift
done
case ${RINGFOLD_CUDA_LIBRARY:-} in *softcuda*) soft=1 ;; esac
python=${PYTHON:-python3}
command -v "$python" >/dev/null || fail "no $python here; PYTHON=... names another"
# Not where the link of a virtual environment leads.
case $python in */*) python=$(realpath -s -- "$python") ;; esac
cd "$root"

# Builds the programs, from what is on this machine.
build() {
    command -v cargo >/dev/null || {
        echo "gpu.sh: no cargo here"
        return 1
    }
    timeout 600 cargo build --quiet --offline --release -p ringfold-cli -p ringfold-softcuda &&
        timeout 600 cargo build --quiet --offline --release -p ringfold --example device_facts
}

needed=("$programs/ringfold" "$programs/examples/device_facts")
driver=$programs/libringfold_softcuda.so
[ -z "$soft" ] || [ -n "${RINGFOLD_CUDA_LIBRARY:-}" ] || needed+=("$driver")
[ -n "$chosen" ] || build || echo "gpu.sh: nothing was built; $programs is used as it is"
for program in "${needed[@]}"; do
    [ -f "$program" ] || fail "no $program: build it elsewhere and copy it here; see gpu.sh --help"
done
[ -z "$soft" ] || {
    export RINGFOLD_CUDA_LIBRARY=${RINGFOLD_CUDA_LIBRARY:-$driver}
    arguments+=(--soft)
}

# A wheel is an archive of what Python imports, so it need not be installed.
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
wheel=$(ls -t target/wheels/ringfold-*.whl 2>/dev/null | head -n 1 || true)
if [ -n "$wheel" ]; then
    "$python" -m zipfile -e "$wheel" "$site"
else
    echo "gpu.sh: no wheel in target/wheels: torch's steps use the ringfold of $python, if it has one"
fi
# The test device of the backend's tests stands for a GPU on the software driver.
PYTHONPATH=$site:$root/bench:$root/python/tests/torch${PYTHONPATH:+:$PYTHONPATH} \
    "$python" -m gpu --programs "$programs" "${arguments[@]}"
