# shellcheck shell=bash
# shellcheck disable=SC2154 # root is set by whoever sources this.
# Instructions per row of what a row passes through, counted by callgrind: unlike times, they are the same on a busy machine.

instructions_file=$root/scripts/bench.d/instructions.md

# Between these counts nothing but the work itself differs.
few=5000 many=25000

# count_instructions PROGRAM NAME COUNT
count_instructions() {
  local said
  said=$(valgrind --tool=callgrind --callgrind-out-file=/dev/null "$@" 2>&1) || die "$2 failed under valgrind: $said"
  sed -n 's/.*Collected : *\([0-9]*\).*/\1/p' <<< "$said"
}

# The table's lines: name, what, instructions.
count_all() {
  local program=$1 name long short
  for name in parse map ledger; do
    long=$(count_instructions "$program" "$name" $many) || exit
    short=$(count_instructions "$program" "$name" $few) || exit
    printf '| %s | %s | %s |\n' "$name" "$(what_is "$name")" $(((long - short) / (many - few)))
  done
}

what_is() {
  case $1 in
    parse) echo "a frame of the stream to a change and its ten values" ;;
    map) echo "a row to a record: topic, key, headers, timestamp, value" ;;
    ledger) echo "a transaction of one row: opened, enqueued, settled, confirmed" ;;
  esac
}

# Against the noted figures: more than a tenth above one is a failure.
compare_instructions() {
  local name now noted worse=''
  while IFS='|' read -r _ name _ now _; do
    noted=$(awk -F '|' -v name="$name" '$2 == name { print $4 + 0 }' "$instructions_file")
    [ -n "$noted" ] || die "${name// /} is not in $instructions_file: scripts/bench instructions --note"
    [ "$((now * 10))" -le "$((noted * 11))" ] || worse+=" ${name// /} ($noted -> ${now// /})"
  done
  [ -z "$worse" ] || die "more instructions than noted:$worse; if that must be: scripts/bench instructions --note"
}

note_instructions() {
  {
    echo "Instructions per row, made by \`scripts/bench instructions --note\` (callgrind, release build; 320 bytes of payload)."
    echo
    echo "| step | what | instructions |"
    echo "|---|---|---:|"
    cat
  } > "$instructions_file"
}

instructions() {
  local program lines
  need_commands valgrind:valgrind
  need_build
  say "building with cargo, which takes some minutes the first time"
  program=$(cargo build --locked --release --bench instructions --message-format json --manifest-path "$root/Cargo.toml" |
    sed -n 's/.*"executable":"\([^"]*instructions-[^"]*\)".*/\1/p' | tail -n 1)
  lines=$(count_all "$program") || exit
  printf '%s\n' "$lines"
  if [ -n "$1" ]; then note_instructions <<< "$lines"; else compare_instructions <<< "$lines"; fi
}
