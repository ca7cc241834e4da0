-- Version 6: events without a table, written to the log alone as messages of prefix walpost. Nothing becomes of them unless an
-- [[outbox]] has messages = true.

-- One JSON line, a newline, the payload's bytes. Values are written as the publisher reads a row's.
CREATE FUNCTION walpost.emit_event(aggregate_type text, aggregate_id text, event_type text, payload_is text, payload bytea, headers jsonb, event_id uuid,
  schema_version integer, aggregate_version bigint, occurred_at timestamptz) RETURNS uuid
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO' AS $$
DECLARE
  id uuid := event_id;
  line text;
BEGIN
  IF id IS NULL AND current_setting('server_version_num')::integer >= 180000 THEN
    id := uuidv7();
  ELSIF id IS NULL THEN
    id := gen_random_uuid();
  END IF;
  SELECT row_to_json(e)::text INTO line FROM (SELECT 1 AS v, id AS event_id, emit_event.aggregate_type, emit_event.aggregate_id,
    emit_event.aggregate_version, emit_event.event_type, emit_event.schema_version, emit_event.occurred_at::text AS occurred_at, emit_event.headers,
    CASE WHEN emit_event.payload IS NOT NULL THEN payload_is END AS payload) AS e;
  PERFORM pg_logical_emit_message(true, 'walpost',
    convert_to(line, CASE getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END) || '\x0a'::bytea || coalesce(emit_event.payload, ''));
  RETURN id;
END $$;

-- SECURITY DEFINER: who may write messages of any prefix by hand (by default everybody) can be limited to the owner of these.
CREATE FUNCTION walpost.emit(aggregate_type text, aggregate_id text, event_type text, payload jsonb, headers jsonb DEFAULT NULL, event_id uuid DEFAULT NULL,
  schema_version integer DEFAULT 1, aggregate_version bigint DEFAULT NULL, occurred_at timestamptz DEFAULT now()) RETURNS uuid
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT walpost.emit_event(aggregate_type, aggregate_id, event_type, 'json',
    convert_to(payload::text, CASE getdatabaseencoding() WHEN 'SQL_ASCII' THEN 'SQL_ASCII' ELSE 'UTF8' END), headers, event_id, schema_version,
    aggregate_version, occurred_at)
$$;
COMMENT ON FUNCTION walpost.emit IS 'publishes an event with this transaction, without a row; returns its id';

CREATE FUNCTION walpost.emit_bytes(aggregate_type text, aggregate_id text, event_type text, payload bytea, headers jsonb DEFAULT NULL, event_id uuid DEFAULT NULL,
  schema_version integer DEFAULT 1, aggregate_version bigint DEFAULT NULL, occurred_at timestamptz DEFAULT now()) RETURNS uuid
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT walpost.emit_event(aggregate_type, aggregate_id, event_type, 'bytes', payload, headers, event_id, schema_version, aggregate_version, occurred_at)
$$;
COMMENT ON FUNCTION walpost.emit_bytes IS 'publishes an event of any bytes with this transaction, without a row; returns its id';

REVOKE ALL ON FUNCTION walpost.emit_event, walpost.emit, walpost.emit_bytes FROM PUBLIC;
