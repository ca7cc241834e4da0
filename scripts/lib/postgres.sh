# shellcheck shell=bash
# shellcheck disable=SC2154 # root and dir are set by whoever sources this.
# One PostgreSQL cluster per major version, under $dir. Needs common.sh.

# Minor versions of the binaries on Maven Central, for majors that the system doesn't have.
declare -A postgres_releases=([14]=14.23.0 [15]=15.18.0 [16]=16.14.0 [17]=17.10.0 [18]=18.4.0)

# postgres_bin MAJOR: the folder of initdb, pg_ctl and postgres; nothing when it isn't installed.
postgres_bin() {
  local folder
  for folder in "/usr/lib/postgresql/$1/bin" "$(cache)/postgres-${postgres_releases[$1]}/bin"; do
    if [ -x "$folder/postgres" ]; then
      echo "$folder"
      return
    fi
  done
}

postgres_install() {
  # PostgreSQL refuses to run as root; this package makes the user.
  if [ "$(id -u)" = 0 ] && ! id postgres > /dev/null 2>&1; then need postgresql-common; fi
  [ -z "$(postgres_bin "$1")" ] || return 0
  need_commands java:default-jre-headless mvn:maven xz:xz-utils
  cached "postgres-${postgres_releases[$1]}" "fetching PostgreSQL ${postgres_releases[$1]}" postgres_fetch "${postgres_releases[$1]}"
}

postgres_fetch() {
  local machine
  case $(uname -m) in
    x86_64) machine=amd64 ;;
    aarch64) machine=arm64v8 ;;
    *) die "there is no ready PostgreSQL for $(uname -m): install it by hand" ;;
  esac
  mkdir "$2"
  # A project in the folder itself: Maven notes in its target/ what it unpacked, and never does it again where it finds that.
  cp "$root/scripts/kafka/pom.xml" "$2"
  mvn -q -B -f "$2/pom.xml" dependency:unpack "-DoutputDirectory=$2/jar" \
    "-Dartifact=io.zonky.test.postgres:embedded-postgres-binaries-linux-$machine:$1"
  tar -xJf "$2"/jar/postgres-*.txz -C "$2"
  rm -r "$2"/{jar,pom.xml,target}
}

# as_postgres COMMAND…: as the user that owns the cluster, from a folder that it can enter.
as_postgres() {
  if [ "$(id -u)" = 0 ]; then
    (cd / && exec setpriv --reuid=postgres --regid=postgres --init-groups -- "$@")
  else
    "$@"
  fi
}

# postgres_folder MAJOR: holds the cluster, its socket, its log and its password. Elsewhere when the server's user cannot
# enter $dir (a clone in a private folder, seen from root), or when the socket's path would be over the kernel's 107 bytes.
postgres_folder() {
  if [ "${#dir}" -le 75 ] && as_postgres test -x "$dir" 2> /dev/null; then
    echo "$dir/postgres-$1"
  else
    echo "/var/tmp/walpost-$(id -u)-$(cksum <<< "$dir" | cut -d ' ' -f 1)/postgres-$1"
  fi
}

postgres_port() { cat "$dir/postgres.port" 2> /dev/null || true; }

# postgres_url MAJOR USER DATABASE: nothing as long as there is no cluster.
postgres_url() {
  local password
  password=$(cat "$(postgres_folder "$1")/password" 2> /dev/null) || return 0
  echo "postgres://$2:$password@127.0.0.1:$(postgres_port)/$3"
}

postgres_is_running() { is_running "$(postgres_folder "$1")/data"; }

# Running, and its files weren't deleted under it (cargo clean).
postgres_is_up() { postgres_is_running "$1" && [ -e "$(postgres_folder "$1")/created" ] && [ -n "$(postgres_port)" ]; }

# The folder above the cluster's: $dir, or one in /var/tmp, where anybody could have made it before us.
postgres_parent() {
  local parent
  parent=$(dirname "$1")
  [ -d "$parent" ] || mkdir -m 711 "$parent"
  [ "$parent" = "$dir" ] || { [ -O "$parent" ] && [ ! -L "$parent" ]; } || die "$parent belongs to somebody else: remove it"
}

postgres_create() {
  local folder=$1 bin=$2 password
  password=$(head -c 18 /dev/urandom | base64 | tr '+/' 'xy')
  postgres_parent "$folder"
  rm -rf "$folder"
  mkdir -m 700 "$folder"
  (umask 077 && echo "$password" > "$folder/password")
  [ "$(id -u)" != 0 ] || chown -R postgres:postgres "$folder"
  as_postgres "$bin/initdb" -D "$folder/data" -U postgres -E UTF8 --locale=C -A trust
  # Single-user mode, one statement a line: needs no client and no running server.
  as_postgres "$bin/postgres" --single -D "$folder/data" -c exit_on_error=on postgres << SQL
ALTER ROLE postgres PASSWORD '$password'
CREATE ROLE walpost LOGIN REPLICATION PASSWORD '$password'
CREATE DATABASE walpost OWNER walpost
SQL
  echo "include 'walpost.conf'" >> "$folder/data/postgresql.conf"
  touch "$folder/created"
}

postgres_start() {
  local major=$1 folder bin port
  folder=$(postgres_folder "$major")
  bin=$(postgres_bin "$major")
  if [ ! -e "$folder/created" ]; then slowly "creating a PostgreSQL $major cluster" postgres_create "$folder" "$bin"; fi
  cp "$root/scripts/postgres/pg_hba.conf" "$folder/data/pg_hba.conf"
  port=$(port_for postgres)
  { cat "$root/scripts/postgres/walpost.conf"; printf "port = %s\nunix_socket_directories = '%s'\n" "$port" "$folder"; } > "$folder/data/walpost.conf"
  chmod 644 "$folder"/data/{pg_hba,walpost}.conf
  # Left over from a crash, the numbers in these may belong to other processes by now. That none of ours runs, we know.
  rm -f "$folder/data/postmaster.pid" "$folder"/.s.PGSQL.*
  as_postgres "$bin/pg_ctl" start -w -t 60 -s -D "$folder/data" -l "$folder/log" 9>&- < /dev/null ||
    { tail -n 20 "$folder/log" >&2; die "PostgreSQL $major did not start; its log is $folder/log"; }
}

# Fast first; a walsender whose client doesn't answer holds that up, so then immediately.
postgres_stop() { stop_process "$(postgres_folder "$1")/data" INT QUIT KILL; }
