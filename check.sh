#!/usr/bin/env bash
# The gate for a change: format, lints, docs, the site, Rust tests, the wheel, Python tests, a job.
# This file has the options, and what each stage does; .ci/plan.py which of them run at the same
# time, and .ci/stages.py runs them.
set -euo pipefail
cd "$(dirname "$0")"

# The release of torch for all tests, and the Python environment.
torch=${CHECK_TORCH:-2.13.0}
venv=${CHECK_VENV:-.venv}

usage() {
    cat <<END
usage: check.sh [--deep] [--only STAGE]... [--torch VERSION]

Runs all checks that a change must pass: format, lints, docs, the site of the documentation, Rust
tests, the wheel, Python tests with torch $torch, a real job. Needs Rust, a C compiler, Python 3.11
or newer (PYTHON=... selects another than python3) and 6 GB of disk. The Python environment is
$venv, which is created on the first run. Later runs need no network. On two cores it takes about
9 minutes, the first time about 15 and the time to download torch.

  --deep            also the long tests: exhaustive and random runs, fault storms, SimGrid, mpirun
  --only STAGE      only this stage, named as in the output, such as "lints"; may be repeated
  --torch VERSION   only the tests of the PyTorch backend, with this release of torch,
                    in .venv-torch-VERSION
  --help            print this

Shows what runs every 15 seconds (every minute if the output is no terminal). The output of each
stage is kept in target/check, and what each took, in seconds and in seconds of processors, in
target/check/times.tsv. Ctrl-C ends everything.

Tests that this machine cannot run are listed with their reasons at the end. With
RINGFOLD_REQUIRE_ALL=1 they are a failure.

Test runs print their seeds; TEST_SEED=... repeats one of torch's tests, TEST_GLOO=1 runs these on
gloo, too.
END
}

format() {
    cargo fmt --all --check
}

lints() {
    cargo clippy --workspace --all-targets -- -D warnings
}

# All that tests run. The Python module, too: with the same packages, the wheel compiles nothing
# again. `rust_tests` reads which programs there are.
rust_build() {
    mkdir -p target/check
    cargo test --no-run --workspace --message-format json-render-diagnostics >target/check/tests.json
}

rust_tests() {
    exec "$venv/bin/python" .ci/rust_tests.py target/check/tests.json
}

# With the same packages as `rust_build`: with others, dependencies would have other features, and be
# compiled once more.
doctests() {
    cargo test --doc --workspace
}

site() {
    exec docs/build.sh
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
    local tools='auditwheel, expecttest, maturin, ml_dtypes, mypy, numpy, pytest, sklearn, twine'
    tools="$tools, xdist, ziglang"
    local version='from importlib.metadata import version; print(version("torch").split("+")[0])'
    "$venv/bin/python" -c "import $tools" 2>/dev/null &&
        [ "$("$venv/bin/python" -c "$version" 2>&1)" = "$torch" ] ||
        "$venv/bin/python" -m pip install --disable-pip-version-check --progress-bar off \
            auditwheel expecttest 'maturin>=1.9,<2' ml_dtypes mypy numpy pytest pytest-xdist \
            scikit-learn "torch==$torch" twine ziglang
}

# The wheel in the profile of the Rust tests, which have compiled all of it but the module, with
# their checks of overflow. `--deep` tests the one that is published.
wheel() {
    rm -rf target/wheels
    "$venv/bin/python" -m maturin build --profile dev \
        --interpreter "$venv/bin/python" --out target/wheels
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        --no-index --no-deps --force-reinstall \
        target/wheels/ringfold-*.whl
}

# The wheel for all Linux, as it is published but for the profile, and all tests with it: another
# linker has made it, and it is optimised, without checks of overflow.
published_wheel() {
    rm -rf target/manylinux
    release/wheel.sh --python "$venv/bin/python" --profile release --out target/manylinux
    "$venv/bin/python" release/audit.py target/manylinux/ringfold-*.whl
    rm -rf target/manylinux/site
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps \
        --target target/manylinux/site target/manylinux/ringfold-*.whl
    export PYTHONPATH=$PWD/target/manylinux/site
    python_tests
    torch_tests
}

python_types() {
    "$venv/bin/python" -m mypy
    "$venv/bin/python" -m mypy.stubtest ringfold._native
}

# Two tests at a time: ranks that start, wait or are killed leave much of a core idle. Tests of one
# file share what they have compiled.
python_tests() {
    "$venv/bin/python" -m pytest --verbose --numprocesses 2 --dist loadfile \
        --ignore python/tests/torch --ignore python/tests/test_documents.py
}

# The blocks of code in the documents.
documents() {
    "$venv/bin/python" -m pytest --verbose --numprocesses 2 python/tests/test_documents.py
}

# One thread per rank: the ranks are the parallelism. The longest tests are in short files, so a
# worker that is idle takes over what is left of a file.
torch_tests() {
    OMP_NUM_THREADS=1 "$venv/bin/python" -m pytest --verbose --numprocesses 2 --dist worksteal \
        python/tests/torch
}

# The command is that of the Rust tests: `cargo run` would compile another.
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
    programs_run_under_valgrind
    results_of_a_million_elements_are_the_canonical_tree
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
    OMP_NUM_THREADS=1 "$venv/bin/python" -m pytest --verbose -m deep \
        --ignore python/tests/storms python/tests bench/tests
}

# What would be published of each crate builds, with the others as they would be published.
crates() {
    # cargo would build copies that it unpacked in an earlier run.
    rm -rf "${CARGO_HOME:-$HOME/.cargo}"/registry/src/-*/ringfold*
    cargo publish --quiet --workspace --dry-run --allow-dirty --target-dir target/publish
}

storms() {
    OMP_NUM_THREADS=1 "$venv/bin/python" -m pytest --verbose -m "" python/tests/storms
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

if [ "${1:-}" = --stage ]; then # .ci/stages.py calls it so.
    shift
    "$@"
    exit
fi

arguments=()
while [ $# -gt 0 ]; do
    case $1 in
    --torch)
        [ -n "${2:-}" ] || {
            echo "check.sh: --torch needs a version, such as $torch" >&2
            exit 2
        }
        arguments+=(--only "torch tests") torch=$2 venv=.venv-torch-$2
        shift
        ;;
    --deep) arguments+=(--deep) ;;
    --only)
        [ -n "${2:-}" ] || { echo "check.sh: --only needs the name of a stage" >&2 && exit 2; }
        arguments+=(--only "$2")
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

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "check.sh: Python 3.11 or newer is needed, and $python is none" >&2
    exit 2
}
# RINGFOLD_REQUIRE_ALL is unset for tests: ringfold warns of unknown variables with its prefix.
[ "${RINGFOLD_REQUIRE_ALL:-}" != 1 ] || arguments+=(--require-all)
unset RINGFOLD_REQUIRE_ALL
export CHECK_TORCH=$torch CHECK_VENV=$venv
exec "$python" .ci/stages.py "${arguments[@]}"
