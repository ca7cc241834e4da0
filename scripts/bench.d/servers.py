"""The servers that scripts/services started: a database, loads, slots; topics."""

import os
import time

import psycopg
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from psycopg.conninfo import conninfo_to_dict, make_conninfo

# What a production server has, as far as it matters here. Loads have no use for the disk's speed.
SETTINGS = {
    "autovacuum": "off",
    "checkpoint_timeout": "1h",
    "jit": "off",
    "logical_decoding_work_mem": "64MB",
    "max_wal_size": "32GB",
    "wal_sender_timeout": "60s",
}


class Postgres:
    def __init__(self, name="bench"):
        self.name = name
        self.admin_url = os.environ["BENCH_SUPERUSER_URL"]
        self.url = make_conninfo(self.admin_url, dbname=name)
        self.parts = conninfo_to_dict(self.url)

    def uri(self):
        p = self.parts
        return f"postgres://{p['user']}:{p['password']}@{p['host']}:{p['port']}/{p['dbname']}"

    def connect(self):
        return psycopg.connect(self.url, autocommit=True)

    def sql(self, text, *values):
        with self.connect() as connection:
            cursor = connection.execute(text, values or None)
            return cursor.fetchall() if cursor.description else []

    def one(self, text, *values):
        return self.sql(text, *values)[0][0]

    def fresh(self):
        """An empty database, and no slot of an earlier one."""
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            self.drop_slots(connection)
            connection.execute(f"DROP DATABASE IF EXISTS {self.name} WITH (FORCE)")
            connection.execute(f"CREATE DATABASE {self.name}")
        self.set(**SETTINGS)
        self.sql("CHECKPOINT")

    def drop_slots(self, connection):
        end = time.monotonic() + 30
        while True:
            slots = connection.execute(
                "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s", [self.name]
            ).fetchall()
            for slot, pid in slots:
                if pid is None:
                    connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])
                else:
                    connection.execute("SELECT pg_terminate_backend(%s)", [pid])
            if not slots:
                return
            if time.monotonic() > end:
                raise SystemExit(f"bench: slots are still in use: {slots}")
            time.sleep(0.1)

    def set(self, **settings):
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            for name, value in settings.items():
                connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
            connection.execute("SELECT pg_reload_conf()")
        time.sleep(0.2)

    def end(self):
        return self.one("SELECT pg_current_wal_insert_lsn()")

    def reached(self, slot, lsn):
        return self.one("SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s", lsn, slot)

    def wal_since(self, lsn):
        return int(self.one("SELECT pg_current_wal_insert_lsn() - %s::pg_lsn", lsn))

    def load(self, rows, per_tx, payload, table="outbox", column="jsonb"):
        """Rows in transactions of `per_tx`, each with a payload of about `payload` bytes that compresses as JSON does, in a column of that type."""
        pieces = max(1, (payload - 60) // 33)
        insert = f"""
            INSERT INTO {table} (aggregate_type, aggregate_id, event_type, payload)
            SELECT 'order', (i %% 50000)::text, 'OrderCreated', {{}}
            FROM generate_series""".replace("%%", "%")
        value = f"""jsonb_build_object('order', i, 'status', 'created', 'items',
              (SELECT jsonb_agg(substr(md5((i * 31 + k)::text), 1, 29)) FROM generate_series(1, {pieces}) k))"""
        insert = insert.format(f"convert_to(({value})::text, 'UTF8')" if column == "bytea" else f"({value})::{column}")
        with self.connect() as connection:
            connection.execute("SET synchronous_commit = off")
            if per_tx >= rows:
                connection.execute(f"{insert}(1, {rows}) i")
            else:
                connection.execute(f"""DO $$ BEGIN FOR n IN 0..{rows // per_tx - 1} LOOP
                    {insert}(n * {per_tx} + 1, (n + 1) * {per_tx}) i; COMMIT; END LOOP; END $$""")
        # On the disk before anything is measured.
        self.sql("CHECKPOINT")


class Kafka:
    def __init__(self):
        self.brokers = os.environ["KAFKA_BROKERS"]
        self.admin = AdminClient({"bootstrap.servers": self.brokers})
        self.reader = Consumer({"bootstrap.servers": self.brokers, "group.id": "bench"})

    def make(self, topic, partitions=8):
        self.admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
        # A new topic has no leaders for a moment, which is no publisher's fault.
        while any(p.leader < 0 for p in self.admin.list_topics(topic, 10).topics[topic].partitions.values()):
            time.sleep(0.1)
        time.sleep(1)

    def count(self, topic):
        """How many records the topic holds, by its offsets."""
        partitions = self.reader.list_topics(topic, 10).topics[topic].partitions
        return sum(self.reader.get_watermark_offsets(TopicPartition(topic, p), 10)[1] for p in partitions)

    def drop(self, topic):
        self.admin.delete_topics([topic])[topic].result(30)
