#!/usr/bin/env bash
# Builds the wheel that is published: one file for every CPython from 3.11 on, and for every Linux
# with glibc 2.28 or newer, whichever this machine has. zig links it against that glibc.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    cat <<END
usage: release/wheel.sh [--python PYTHON] [--profile PROFILE] [--target TARGET] [--out FOLDER]

  --python PYTHON    an environment with maturin and ziglang (default .venv/bin/python)
  --profile PROFILE  cargo's profile (default dist, which is slow to build and what is shipped)
  --target TARGET    of Rust, such as aarch64-unknown-linux-gnu (default: this machine's)
  --out FOLDER       where the wheel goes (default target/wheels)
END
}

python=.venv/bin/python profile=dist out=target/wheels
target=$(rustc -vV | sed -n 's/^host: //p')
while [ $# -gt 0 ]; do
    [ -n "${2:-}" ] || { usage >&2 && exit 2; }
    case $1 in
    --python) python=$2 ;;
    --profile) profile=$2 ;;
    --target) target=$2 ;;
    --out) out=$2 ;;
    *) usage >&2 && exit 2 ;;
    esac
    shift 2
done

# maturin calls `python3 -m ziglang`.
PATH=$(cd "$(dirname "$python")" && pwd):$PATH

# unwinder.c says why.
unwinder=$PWD/target/unwinder/$target
mkdir -p "$unwinder"
python3 -m ziglang cc -target "${target%%-*}-linux-gnu.2.28" -shared -nostdlib -fPIC \
    -Wl,-soname,libgcc_s.so.1 release/unwinder.c -o "$unwinder/libgcc_s.so.1"

exec "$python" -m maturin build --quiet --zig \
    --profile "$profile" --target "$target" --compatibility manylinux_2_28 \
    --interpreter "$python" --out "$out" -- -C "link-arg=$unwinder/libgcc_s.so.1"
