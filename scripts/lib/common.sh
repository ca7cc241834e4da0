# shellcheck shell=bash
# What the scripts share: speaking, installing, caching, ports, processes. Sourced; sets `root`, the repository.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

say() { printf '%s\n' "$*" >&2; }
die() { say "${0##*/}: $*"; exit 1; }
usage_error() { say "${0##*/}: $*; see ${0##*/} --help"; exit 2; }

# The comment at the head of the script is its help.
print_help() { sed -n '2,${/^#/!q;s/^# \{0,1\}//p}' "$0"; }

# slowly TEXT COMMAND…: runs it in silence, with a sign of life every 15 s; its output is shown when it fails.
slowly() {
  local text=$1 log code began=$SECONDS end
  shift
  log=$(mktemp)
  say "$text"
  exec {end}< <(set +e; (set -e; "$@") > "$log" 2>&1; echo $?)
  until read -r -t 15 -u "$end" code; do say "  … still at it after $((SECONDS - began)) s"; done
  exec {end}<&-
  if [ "$code" != 0 ]; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    die "failed (exit code $code): $text"
  fi
  rm -f "$log"
}

# until_true SECONDS COMMAND…: tries it ten times a second; false when the time is over.
until_true() {
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep 0.1
  done
}

# need PACKAGE…: installs what is missing of Debian's packages.
need() {
  local missing=() package
  if ! command -v apt-get > /dev/null; then
    say "no apt-get here: make sure that these packages (Debian's names) are installed: $*"
    return
  fi
  for package; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null)" = installed ] || missing+=("$package")
  done
  [ "${#missing[@]}" = 0 ] || slowly "installing ${missing[*]}" apt_install "${missing[@]}"
}

# need_commands NAME:PACKAGE…: installs the packages of the commands that aren't there.
need_commands() {
  local missing=() pair
  for pair; do
    command -v "${pair%:*}" > /dev/null || missing+=("${pair#*:}")
  done
  [ "${#missing[@]}" = 0 ] || need "${missing[@]}"
  for pair; do
    command -v "${pair%:*}" > /dev/null || die "there is no command ${pair%:*}; install it (Debian's package is ${pair#*:}) and try again"
  done
}

apt_install() {
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300)
  if [ "$(id -u)" != 0 ]; then
    command -v sudo > /dev/null || die "packages are missing; as root: apt-get install $*"
    apt=(sudo "${apt[@]}")
  fi
  # The package lists may be old, or not there at all.
  "${apt[@]}" install --no-install-recommends "$@" || { "${apt[@]}" update && "${apt[@]}" install --no-install-recommends "$@"; }
}

need_cargo() {
  local least have
  least=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml")
  command -v cargo > /dev/null || PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
  command -v cargo > /dev/null || die "there is no cargo: install Rust $least or newer with rustup (https://rustup.rs) and try again"
  have=$(cargo --version | cut -d ' ' -f 2)
  printf '%s\n' "$least" "$have" | sort -C -V || die "cargo is $have, walpost needs $least or newer: rustup update stable"
}

need_build() {
  local packages
  need_cargo
  mapfile -t packages < "$root/scripts/build-packages.txt"
  need "${packages[@]}"
}

# Where cargo puts what it builds, whoever configured that.
cargo_target() { cargo metadata --manifest-path "$root/Cargo.toml" --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/'; }

# The folder of downloads. Not in root's home: the user that the server runs as couldn't enter it.
cache() {
  local folder=${XDG_CACHE_HOME:-$HOME/.cache}/walpost
  [ "$(id -u)" != 0 ] || folder=/var/cache/walpost
  (umask 022 && mkdir -p "$folder")
  echo "$folder"
}

# cached NAME TEXT COMMAND…: the folder NAME of the cache, filled once by COMMAND… FOLDER.
cached() {
  local folder text=$2 lock
  folder=$(cache)/$1
  shift 2
  [ ! -d "$folder" ] || return 0
  exec {lock}> "$(cache)/lock"
  flock "$lock"
  if [ ! -d "$folder" ]; then
    rm -rf "$folder.part"
    (umask 022 && slowly "$text" "$@" "$folder.part")
    # Only whole folders get the name.
    mv "$folder.part" "$folder"
  fi
  exec {lock}>&-
}

need_java() {
  local version
  need_commands java:default-jre-headless
  version=$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p')
  [ "${version:-0}" -ge 17 ] || die "java is version ${version:-unknown}, Kafka needs 17 or newer"
}

port_is_free() { ! (exec 3<> "/dev/tcp/127.0.0.1/$1") 2> /dev/null; }

# Below the range that the kernel gives to outgoing connections.
free_port() {
  local port
  until port=$((15000 + RANDOM % 15000)) && port_is_free "$port"; do :; done
  echo "$port"
}

# find_process ARGUMENT: ids of the processes with exactly this argument. No pid file: it may be stale, or deleted.
find_process() {
  grep -lzxF -f <(printf '%s\n' "$1") /proc/[0-9]*/cmdline 2> /dev/null | cut -d / -f 3 || true
}

is_running() { [ -n "$(find_process "$1")" ]; }
is_stopped() { ! is_running "$1"; }

# stop_process ARGUMENT SIGNAL…: each signal in turn, until nothing with this argument runs.
stop_process() {
  local argument=$1 signal ids
  shift
  for signal; do
    mapfile -t ids < <(find_process "$argument")
    # The shell's own kill: a small system has no other.
    [ "${#ids[@]}" = 0 ] || kill -s "$signal" "${ids[@]}" 2> /dev/null || true
    # With the 0: in an EXIT trap, a bare return gives the code that the script ends with.
    if until_true 30 is_stopped "$argument"; then return 0; fi
  done
  die "cannot stop the process with the argument $argument"
}
