# shellcheck shell=bash
# shellcheck disable=SC2154 # root and dir are set by whoever sources this.
# One Apache Kafka broker (KRaft) under $dir/kafka, and Kafka's own tools. Needs common.sh.

kafka_version=$(sed -n 's:.*<kafka.version>\(.*\)</kafka.version>.*:\1:p' "$root/scripts/kafka/pom.xml")

# The folder of the jars; nothing when they aren't there. Another pom is another folder.
kafka_name="kafka-$kafka_version-$(cksum < "$root/scripts/kafka/pom.xml" | cut -d ' ' -f 1)"
kafka_libs() {
  local folder
  folder=$(cache)/$kafka_name
  [ ! -d "$folder" ] || echo "$folder"
}

kafka_install() {
  need_java
  [ -z "$(kafka_libs)" ] || return 0
  need_commands mvn:maven
  cached "$kafka_name" "fetching Apache Kafka $kafka_version" kafka_fetch
}

kafka_fetch() { mvn -q -B -f "$root/scripts/kafka/pom.xml" dependency:copy-dependencies "-DoutputDirectory=$1"; }

# Sets `java`: the start of every command line.
kafka_java() { java=(java -XX:+UseSerialGC "-Dlog4j2.configurationFile=$root/scripts/kafka/log4j2.properties" -cp "$(kafka_libs)/*"); }

# kafka_tool CLASS ARGUMENT…: one of Kafka's command-line tools.
kafka_tool() {
  local java
  kafka_java
  "${java[@]}" -Xmx256m -XX:TieredStopAtLevel=1 "$@"
}

kafka_is_running() { is_running "$dir/kafka/server.properties"; }

# Running, and its files weren't deleted under it (cargo clean).
kafka_is_up() { kafka_is_running && [ -e "$dir/kafka/data/meta.properties" ] && [ -n "$(kafka_brokers kafka)" ]; }

# kafka_brokers NAME: 127.0.0.1:port of the listener kafka or kafka-sasl; nothing before its first start.
kafka_brokers() { [ ! -s "$dir/$1.port" ] || echo "127.0.0.1:$(cat "$dir/$1.port")"; }

kafka_start() {
  local folder=$dir/kafka settings java
  mkdir -p "$folder"
  [ ! -e "$folder/log" ] || mv "$folder/log" "$folder/log.old"
  settings=$(cat "$root"/scripts/kafka/{server,secured}.properties)
  settings=${settings//@PORT@/$(port_for kafka)}
  settings=${settings//@CONTROLLER_PORT@/$(port_for kafka-controller)}
  settings=${settings//@SASL_PORT@/$(port_for kafka-sasl)}
  printf '%s\n' "${settings//@DATA@/"$folder/data"}" > "$folder/server.properties"
  if [ ! -e "$folder/data/meta.properties" ]; then
    kafka_tool kafka.tools.StorageTool format --config "$folder/server.properties" --cluster-id walpostWalpostWalpostA >> "$folder/log" 2>&1 ||
      kafka_failed "cannot prepare its folder $folder/data"
  fi
  kafka_java
  touch "$folder/log"
  setsid nohup "${java[@]}" -Xms256m -Xmx512m kafka.Kafka "$folder/server.properties" >> "$folder/log" 2>&1 9>&- < /dev/null &
  until_true 90 kafka_is_ready_or_ended "$!" || kafka_failed "not ready after 90 s"
  kafka_is_ready || kafka_failed "it ended"
}

kafka_failed() {
  tail -n 20 "$dir/kafka/log" >&2
  die "Kafka did not start: $1; its log is $dir/kafka/log"
}

# A port that answers is not enough: the broker opens it before it can serve.
kafka_is_ready() { grep -q 'Kafka Server started' "$dir/kafka/log"; }
kafka_is_ready_or_ended() { kafka_is_ready || ! kill -0 "$1" 2> /dev/null; }

kafka_stop() { stop_process "$dir/kafka/server.properties" TERM KILL; }
