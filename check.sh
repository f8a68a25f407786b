#!/usr/bin/env bash
# The gate for a change: format, lints, docs, the site, Rust tests, the wheel, Python tests, a job.
set -euo pipefail
cd "$(dirname "$0")"

# The release of torch for all tests, and the Python environment.
torch=2.13.0
venv=.venv

usage() {
    cat <<END
usage: check.sh [--deep] [--only STAGE]... [--torch VERSION]

Runs all checks that a change must pass: format, lints, docs, the site of the documentation, Rust
tests, the wheel, Python tests with torch $torch, a real job. Needs Rust, a C compiler, Python 3.11
or newer (PYTHON=... selects another than python3) and 6 GB of disk. The Python environment is
$venv, which is created on the first run. Later runs need no network.

  --deep            also the long tests: exhaustive and random runs, fault storms, SimGrid, mpirun
  --only STAGE      only this stage, named as in the output, such as "lints"; may be repeated
  --torch VERSION   only the tests of the PyTorch backend, with this release of torch,
                    in .venv-torch-VERSION
  --help            print this

Tests that this machine cannot run are listed with their reasons at the end. With
RINGFOLD_REQUIRE_ALL=1 they are a failure.

Test runs print their seeds; TEST_SEED=... repeats one of torch's tests, TEST_GLOO=1 runs these on
gloo, too.
END
}

only_torch=
deep=
only=()
while [ $# -gt 0 ]; do
    case $1 in
    --torch)
        [ -n "${2:-}" ] || {
            echo "check.sh: --torch needs a version, such as $torch" >&2
            exit 2
        }
        only_torch=1 torch=$2 venv=.venv-torch-$2
        shift
        ;;
    --deep) deep=1 ;;
    --only)
        [ -n "${2:-}" ] || { echo "check.sh: --only needs the name of a stage" >&2 && exit 2; }
        only+=("$2")
        shift
        ;;
    --help | -h)
        usage
        exit
        ;;
    *)
        echo "check.sh: no option $1; see check.sh --help" >&2
        exit 2
        ;;
    esac
    shift
done

# What a run keeps while it lasts: the tests' skips, the names of the stages that began, and the
# output of those beside others.
state=$(mktemp -d)

# Tests add a line for each skip. RINGFOLD_REQUIRE_ALL is unset for them: ringfold warns of unknown
# variables with its prefix.
export TEST_SKIPS=$state/skips
require_all=${RINGFOLD_REQUIRE_ALL:-}
unset RINGFOLD_REQUIRE_ALL

current="nothing yet"
beside=

finish() {
    local status=$?
    [ -z "$beside" ] || kill -- "-$beside" 2>/dev/null || true
    rm -rf "$state"
    [ "$status" = 0 ] || printf "\ncheck.sh: FAILED in: %s\n" "$current" >&2
}
trap finish EXIT

# stage NAME COMMAND...: runs the command under a heading and prints how long it took.
stage() {
    local name=$1 chosen
    shift
    if [ ${#only[@]} -gt 0 ]; then
        for chosen in "${only[@]}"; do
            [ "$chosen" = "$name" ] && break
        done
        [ "$chosen" = "$name" ] || return 0
    fi
    current=$name
    echo "$name" >>"$state/stages"
    printf '\n== %s\n' "$current"
    local begin=$SECONDS
    "$@"
    printf -- '-- %s: %d s\n' "$current" $((SECONDS - begin))
}

# start_beside COMMAND: runs a function of stages at the same time as the stages that follow, in a
# process group of its own.
start_beside() {
    set -m
    (
        trap 'echo "$current" >"$state/current"' EXIT
        "$1"
    ) </dev/null >"$state/output" 2>&1 &
    beside=$!
    set +m
}

# join_beside: waits for these stages, and prints what they wrote.
join_beside() {
    local status=0
    wait "$beside" || status=$?
    beside=
    cat "$state/output"
    [ "$status" = 0 ] || current=$(cat "$state/current")
    return "$status"
}

docs() {
    RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps
}

# loom_models PREEMPTIONS: without a bound, one of the models takes more than ten minutes. Two
# preemptions find typical errors; three are a long test. A target folder of its own, because other
# flags would rebuild everything else.
loom_models() {
    local log=target/loom.log
    mkdir -p target
    LOOM_MAX_PREEMPTIONS=$1 RUSTFLAGS="--cfg loom" \
        cargo test --release --target-dir target/loom -p ringfold-loom 2>&1 | tee "$log"
    grep -Eq 'test result: ok\. [1-9]' "$log" || {
        echo "no loom test ran" >&2
        return 1
    }
}

# Creates the environment, and completes it if a tool is missing. torch is not imported, because
# that takes seconds.
python_environment() {
    [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
    "$venv/bin/python" -c \
        'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
    local tools='auditwheel, expecttest, maturin, ml_dtypes, mypy, numpy, pytest, sklearn, twine'
    tools="$tools, xdist, ziglang"
    local version='from importlib.metadata import version; print(version("torch").split("+")[0])'
    "$venv/bin/python" -c "import $tools" 2>/dev/null &&
        [ "$("$venv/bin/python" -c "$version" 2>&1)" = "$torch" ] ||
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
            auditwheel expecttest 'maturin>=1.9,<2' ml_dtypes mypy numpy pytest pytest-xdist \
            scikit-learn "torch==$torch" twine ziglang
}

wheel() {
    rm -rf target/wheels
    "$venv/bin/python" -m maturin build --quiet --release \
        --interpreter "$venv/bin/python" --out target/wheels
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        --no-index --no-deps --force-reinstall \
        target/wheels/ringfold-*.whl
}

# The wheel for all Linux, as it is published but for the profile.
published_wheel() {
    rm -rf target/manylinux
    release/wheel.sh --python "$venv/bin/python" --profile release --out target/manylinux
    "$venv/bin/python" release/audit.py target/manylinux/ringfold-*.whl
    # Another linker has made it, so threads, handlers and the exit are tested again.
    rm -rf target/manylinux/site
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps \
        --target target/manylinux/site target/manylinux/ringfold-*.whl
    PYTHONPATH=$PWD/target/manylinux/site "$venv/bin/python" -m pytest --quiet --numprocesses 2 \
        python/tests/test_contexts.py python/tests/test_faults.py python/tests/test_handlers.py \
        python/tests/test_use.py
}

python_types() {
    "$venv/bin/python" -m mypy
    "$venv/bin/python" -m mypy.stubtest ringfold._native
}

# Two tests at a time: ranks that start, wait or are killed leave much of a core idle. Tests of one
# file share what they have compiled.
python_tests() {
    "$venv/bin/python" -m pytest --quiet --numprocesses 2 --dist loadfile \
        --ignore python/tests/torch --ignore python/tests/test_documents.py
}

# They need the command, which the Rust tests build.
documents() {
    "$venv/bin/python" -m pytest --quiet --numprocesses 2 python/tests/test_documents.py
}

# One thread per rank: the ranks are the parallelism. The longest tests are in short files, so a
# worker that is idle takes over what is left of a file.
torch_tests() {
    OMP_NUM_THREADS=1 "$venv/bin/python" -m pytest --quiet --numprocesses 2 --dist worksteal \
        python/tests/torch
}

# The command is that of the Rust tests: `cargo run` builds another, with fewer features.
digits() {
    [ -x target/debug/ringfold ] || cargo build --quiet --package ringfold-cli
    # One thread of linear algebra per rank: the ranks are the parallelism.
    export OPENBLAS_NUM_THREADS=1
    "$venv/bin/python" examples/digits_numpy.py
    target/debug/ringfold run --ranks 4 -- "$venv/bin/python" examples/digits_numpy.py
}

# The long Rust tests by name; `cargo test` alone ignores them.
deep_rust_tests=(
    all_random_lanes_are_exact
    all_random_runs_are_exact
    each_call_that_fails_is_named_by_every_rank
    every_mix_of_hosts_is_exact
    every_single_refused_call_ends_a_lane_whose_devices_read_all_slots
    every_type_and_operation_is_exact_with_every_length
    noise_costs_what_was_worked_out
    simgrid_agrees
    sizes_past_two_gib_arrive_whole
)

deep_rust() {
    local log=target/deep.log passed
    cargo test --release --lib --tests -- --ignored "${deep_rust_tests[@]}" 2>&1 | tee "$log"
    passed=$(awk '/^test result: ok/ { sum += $4 } END { print sum + 0 }' "$log")
    [ "$passed" = ${#deep_rust_tests[@]} ] || {
        echo "${#deep_rust_tests[@]} tests should have run, not $passed" >&2
        return 1
    }
}

# The tests that run on RDMA devices, by name and by a part of their names.
rdma_device_test=verbs::device::tests::each_device_has_a_port_that_connections_can_use
rdma_tests=(verbs:: transport::rdma:: conformance::tests::over_rdma)

deep_python() {
    OMP_NUM_THREADS=1 "$venv/bin/python" -m pytest --quiet -m deep \
        --ignore python/tests/storms python/tests bench/tests
}

# What would be published of each crate builds, with the others as they would be published.
crates() {
    # cargo would build copies that it unpacked in an earlier run.
    rm -rf "${CARGO_HOME:-$HOME/.cargo}"/registry/src/-*/ringfold*
    cargo publish --quiet --workspace --dry-run --allow-dirty --target-dir target/publish
}

storms() {
    OMP_NUM_THREADS=1 "$venv/bin/python" -m pytest --quiet -m "" python/tests/storms
}

# in_rdma_vm PROGRAM ARGUMENTS...: runs tests there; that there are none is a failure.
in_rdma_vm() {
    local log=target/rdma.log
    bench/rdma_vm.sh "$@" 2>&1 | tee "$log"
    grep -Eq 'test result: ok\. [1-9]' "$log" || {
        echo "no test ran" >&2
        return 1
    }
}

# test_program FLAG...: builds the core's tests that the flags choose; prints the program.
test_program() {
    cargo test --no-run -p ringfold "$@" --quiet --message-format json |
        "$venv/bin/python" -c "import json, sys
rows = [json.loads(line) for line in sys.stdin]
print(*{row['executable'] for row in rows if row.get('executable')})"
}

# exact_over_rdma RANKS TRANSPORT REGISTER_BYTES: all collectives, algorithms and types by $program
# between processes on two hosts.
exact_over_rdma() {
    # With more processors the emulated machine takes longer.
    RDMA_VM_CPUS=2 RINGFOLD_TEST_SCENE=exact RINGFOLD_LATE_RANK=1 RINGFOLD_TRANSPORT=$2 \
        RINGFOLD_IB_REGISTER_BYTES=$3 RDMA_VM_TIMEOUT=1200 \
        in_rdma_vm bench/rdma_hosts.py --ranks "$1" --limit 1100 --run -- \
        "$program" --exact a_rank --ignored --nocapture
}

# In a virtual machine with RDMA devices: the tests of devices, of the transport and of all
# collectives over it, in one process and between hosts, and a storm. Skipped where no such machine
# can run.
rdma_vm() {
    local status=0 reason program
    reason=$(bench/rdma_vm.sh --check 2>&1) || status=$?
    if [ "$status" = 77 ]; then
        echo "skipped: $reason"
        echo "rdma in a virtual machine: $reason" >>"$TEST_SKIPS"
        return 0
    fi
    [ "$status" = 0 ] || { echo "$reason" >&2 && return 1; }
    # Built here, because the emulated machine is slow.
    program=$(test_program --lib)
    in_rdma_vm "$program" --ignored --exact "$rdma_device_test"
    TEST_RDMA_DEVICES=rxe0,rxe1 in_rdma_vm "$program" "${rdma_tests[@]}"
    program=$(test_program --test exact)
    exact_over_rdma 2 rdma off
    exact_over_rdma 2 rdma 16K
    exact_over_rdma 4 rdma auto
    exact_over_rdma 4 auto auto
    RDMA_VM_HOSTS=4 RDMA_VM_MEMORY=3072 RDMA_VM_TIMEOUT=1800 bench/rdma_vm.sh \
        "$PWD/$venv/bin/python" python/tests/storms/cables.py --rounds 30 --transport rdma
}

deep() {
    stage "deep loom tests" loom_models 3
    stage "deep rust tests" deep_rust
    stage "published wheel" published_wheel
    stage "deep python tests" deep_python
    stage "crates" crates
    [ ! -d python/tests/storms ] || stage "storms" storms
    stage "rdma in a virtual machine" rdma_vm
}

# Prints the skips, and fails if they are not allowed.
skips() {
    [ -s "$TEST_SKIPS" ] || return 0
    printf '\n== skipped\n'
    sort --unique "$TEST_SKIPS"
    [ "$require_all" != 1 ] || {
        current="skipped tests, which RINGFOLD_REQUIRE_ALL=1 does not allow"
        return 1
    }
}

# The stages that need nothing of the Rust tests, which wait for processes and deadlines for more
# than half of their time. torch's tests come later: they use all cores.
beside_rust_tests() {
    [ -n "$only_torch" ] || stage "loom tests" loom_models 2
    stage "wheel" wheel
    if [ -z "$only_torch" ]; then
        stage "python types" python_types
        stage "python tests" python_tests
        stage "site" docs/build.sh
    fi
}

# Most of its time is pip's, which uses one core. It ends before the Rust tests, two of which need
# the assembler of triton, which comes with torch.
beside_lints() {
    stage "python environment" python_environment
}

start_beside beside_lints
if [ -z "$only_torch" ]; then
    stage "format" cargo fmt --all --check
    stage "lints" cargo clippy --quiet --workspace --all-targets -- -D warnings
    stage "docs" docs
fi
join_beside
start_beside beside_rust_tests
[ -n "$only_torch" ] || stage "rust tests" cargo test --quiet
join_beside
[ -n "$only_torch" ] || stage "documents" documents
[ -n "$only_torch" ] || stage "digits" digits
stage "torch tests" torch_tests
[ -z "$deep" ] || deep

[ -s "$state/stages" ] || { current="--only: no stage is called ${only[*]}" && exit 2; }
skips
printf '\ncheck.sh: all passed in %d s\n' "$SECONDS"
