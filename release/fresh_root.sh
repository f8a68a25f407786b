#!/usr/bin/env bash
# What a stranger does first: a new Debian with Python and nothing else, no Rust and no compiler;
# the wheel by `pip install`, all commands of docs/start as the pages have them, the example for
# DDP, and `ringfold perf`. Prints how long each of them took.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    cat <<END
usage: release/fresh_root.sh [--suite SUITE] [--python PYTHON] [WHEEL]

Needs debootstrap, root, and the network: Debian's and Python's packages are downloaded once, to
target/fresh-root, about 4 GB. Without debootstrap or root, an environment of this system's Python
is used, with a PATH on which there is no cargo.

  --suite SUITE     of Debian: bookworm (Python 3.11), trixie (3.13); default bookworm
  --python PYTHON   an environment with pytest, which reads the pages (default .venv/bin/python)
  WHEEL             default: the one in target/wheels
END
}

suite=bookworm python=.venv/bin/python wheel=
while [ $# -gt 0 ]; do
    case $1 in
    --suite) suite=${2:?} && shift ;;
    --python) python=${2:?} && shift ;;
    --help | -h) usage && exit ;;
    -*) usage >&2 && exit 2 ;;
    *) wheel=$1 ;;
    esac
    shift
done
[ -n "$wheel" ] || wheel=$(ls target/wheels/ringfold-*_"$(uname -m)".whl)
[ -f "$wheel" ] || { echo "fresh_root.sh: no wheel \`$wheel\`; release/wheel.sh builds it" >&2 && exit 2; }

# The user of the new system.
user=1000

root=target/fresh-root/$suite is_system=1
[ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null || {
    root=target/fresh-root/none is_system=
    echo "fresh_root.sh: no debootstrap, or not root: an environment of this system's Python"
}
home=$root/home/stranger

# give FOLDER: makes the user its owner.
give() {
    [ -z "$is_system" ] || chown -R "$user:$user" "$1"
}

# make_root: a system in a folder, with the network of this one.
make_root() {
    [ ! -e "$root/made" ] || return 0
    rm -rf "$root"
    mkdir -p "$root"
    [ -z "$is_system" ] ||
        debootstrap --variant=minbase --include=python3-venv,ca-certificates \
            "$suite" "$root" >"$root.log"
    mkdir -p "$root/wheels"
    give "$root/wheels"
    touch "$root/made"
}

# Names, certificates and the settings of pip are this system's, so that downloads work here as
# there.
lend_network() {
    local file
    for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
        [ ! -e "$file" ] || install -D -m 644 "$(readlink -f "$file")" "$root$file"
    done
}

# enter SCRIPT: runs a script of the user's home as that user, in the system of $root.
enter() {
    local proxies
    mapfile -t proxies < <(env | grep -iE '^(https?|no|all)_proxy=' || true)
    if [ -z "$is_system" ]; then
        env -i "${proxies[@]}" HOME="$PWD/$home" WHEELS="$PWD/$root/wheels" LANG=C.UTF-8 \
            PATH=/usr/bin:/bin bash "$PWD/$home/$1"
        return
    fi
    # The mounts and all processes go with this namespace.
    unshare --mount --pid --fork --kill-child bash -ec '
        mount -t proc proc "$1/proc"
        mount -t sysfs -o ro sysfs "$1/sys"
        mount --rbind /dev "$1/dev"
        mount -t tmpfs tmpfs "$1/dev/shm"
        shift
        exec "$@"
    ' bash "$root" chroot --userspec="$user:$user" "$root" /usr/bin/env -i "${proxies[@]}" \
        HOME=/home/stranger WHEELS=/wheels LANG=C.UTF-8 PATH=/usr/bin:/bin \
        bash "/home/stranger/$1"
}

# The user's commands. `announce` begins a step, and writes down how long the last one took.
preamble() {
    cat <<'END'
set -eu
cd
for tool in cargo rustc cc gcc clang; do
    ! command -v $tool || [ "$WHEELS" != /wheels ]
done
announce() {
    local now=${EPOCHREALTIME/./}
    [ -z "${step:-}" ] || printf '%7d.%d s   %s\n' \
        $(((now - begin) / 1000000)) $(((now - begin) / 100000 % 10)) "$step" >>times
    begin=$now step=$1
    [ -z "$1" ] || printf '\n$ %s\n' "$1"
}
# The hosts of the pages do not exist.
ssh() { sh -c "$3"; }
END
}

# What comes from an index: its time is the network's.
downloading() {
    preamble
    cat <<END
python3 -m venv loader
loader/bin/python -m pip download --quiet --disable-pip-version-check --dest "\$WHEELS" \
    --find-links "\$WHEELS" numpy scikit-learn torch
END
}

running() {
    preamble
    cat <<END
announce "python3 -m venv venv"
python3 -m venv venv
PATH=\$HOME/venv/bin:\$PATH
install() { pip install --quiet --disable-pip-version-check --no-index --find-links "\$WHEELS" "\$@"; }
announce "pip install ringfold numpy scikit-learn"
install ./$(basename "$wheel") numpy scikit-learn
announce "pip install torch"
install torch
END
    "$python" - <<'END'
import shlex
import sys

sys.path.insert(0, "python/tests")
from test_documents import ROOT, steps

for page in ("docs/start/index.md", "docs/start/several-hosts.md"):
    for name, text in steps(ROOT / page):
        print(f"announce {shlex.quote(f'{page}: {name}')}\n{text}")
END
    cat <<'END'
unset RINGFOLD_WORLD_SIZE RINGFOLD_ADDR RINGFOLD_SECRET_FILE
announce "torchrun --nproc-per-node 2 examples/ddp_digits.py --backend ringfold"
torchrun --nproc-per-node 2 examples/ddp_digits.py --backend ringfold
announce "ringfold perf --ranks 2"
ringfold perf --ranks 2
announce ""
END
}

make_root
[ -z "$is_system" ] || lend_network
rm -rf "$home"
mkdir -p "$home/examples"
cp "$wheel" "$home"
cp examples/ddp_digits.py "$home/examples"
downloading >"$home/downloading.sh"
running >"$home/running.sh"
give "$home"
enter downloading.sh
enter running.sh
printf '\n== %s, %s\n' "$(basename "$wheel")" "$(basename "$root")"
cat "$home/times"
awk '!/pip install torch$/ { sum += $1 } END { printf "%9.1f s   all but the installation of torch\n", sum }' \
    "$home/times"
