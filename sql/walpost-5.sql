-- Version 5: dead letters, each an event that could not be published, with all that it takes to publish it later; and what operators do with them.

CREATE TABLE walpost.timeline (
  slot text PRIMARY KEY,
  timeline integer NOT NULL
);
COMMENT ON TABLE walpost.timeline IS 'the timeline that a slot was last read on; a promoted standby has another one';
INSERT INTO walpost.timeline (slot, timeline) SELECT slot, timeline FROM walpost.slot WHERE timeline IS NOT NULL;
ALTER TABLE walpost.slot DROP COLUMN timeline;

ALTER TABLE walpost.meta DROP COLUMN one;
ALTER TABLE walpost.meta ADD PRIMARY KEY (version);
CREATE UNIQUE INDEX meta_one ON walpost.meta ((true));

CREATE TABLE walpost.dead_letter (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  slot text NOT NULL,
  -- The outbox table, with its schema.
  outbox text NOT NULL,
  event_id text,
  -- NULL for an event that an operator sends again.
  position_lsn pg_catalog.pg_lsn,
  position_ordinal integer,
  committed_at timestamptz,
  -- Empty where no topic could be made of the row.
  topic text NOT NULL DEFAULT '',
  partition integer,
  key bytea,
  -- [name, text | null | {"base64": text}] each, in the record's order.
  headers jsonb,
  -- The record's timestamp, in milliseconds since 1970.
  record_ms bigint,
  payload bytea,
  -- Column name → text | null, of a row that no record could be made of.
  raw jsonb,
  status text NOT NULL CHECK (status IN ('pending', 'replaying', 'held', 'dead', 'resolved', 'ignored')),
  error_class text,
  error_code text,
  error_text text,
  -- Sends from this letter.
  attempts integer NOT NULL DEFAULT 0,
  first_failed_at timestamptz,
  last_failed_at timestamptz,
  -- When a pending one is sent again by itself.
  next_retry_at timestamptz,
  -- The letter that a held one waits behind.
  held_behind bigint,
  acted_by text,
  acted_at timestamptz,
  life integer,
  UNIQUE (slot, life, position_lsn, position_ordinal)
);
COMMENT ON TABLE walpost.dead_letter IS 'events that could not be published yet; walpost.replay(id), walpost.ignore(id, reason), walpost.resend(event_id) act on them';
COMMENT ON COLUMN walpost.dead_letter.life IS 'of the slot: positions of another life may repeat';

-- The order of a key's letters, and which keys are held.
CREATE INDEX dead_letter_open ON walpost.dead_letter (slot, outbox, topic, key, life, position_lsn, position_ordinal)
  WHERE status IN ('pending', 'replaying', 'held', 'dead');
CREATE INDEX dead_letter_due ON walpost.dead_letter (next_retry_at) WHERE status = 'pending';
CREATE INDEX dead_letter_event ON walpost.dead_letter (event_id);

-- Says why a verb is refused: what the letter is, by whom and since when.
CREATE FUNCTION walpost.refuse(letter_id bigint, verb text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  l walpost.dead_letter%ROWTYPE;
BEGIN
  SELECT * INTO l FROM walpost.dead_letter d WHERE d.id = letter_id;
  IF NOT FOUND THEN
    RAISE EXCEPTION USING ERRCODE = 'P0001', MESSAGE = format('there is no dead letter %s', letter_id);
  END IF;
  RAISE EXCEPTION USING ERRCODE = 'P0001', MESSAGE = format('dead letter %s cannot be %s: it is %s%s%s', letter_id, verb, l.status,
    CASE WHEN l.status = 'held' AND l.held_behind IS NOT NULL THEN format(' and waits behind %s', l.held_behind) ELSE '' END,
    CASE WHEN l.acted_by IS NOT NULL THEN format(' (by %s at %s)', l.acted_by, to_char(l.acted_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')) ELSE '' END);
END $$;

-- Notes the deed and wakes the publisher up, which then looks at the letter itself: the message orders nothing.
CREATE FUNCTION walpost.acted(letter walpost.dead_letter, verb text, detail jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO walpost.audit_log (who, verb, dead_letter_id, event_id, detail)
  VALUES (session_user, verb, letter.id, letter.event_id, detail);
  PERFORM pg_logical_emit_message(true, 'walpost.command', json_build_object('v', 1, 'slot', letter.slot, 'id', letter.id)::text);
END $$;

CREATE FUNCTION walpost.replay(id bigint) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  l walpost.dead_letter%ROWTYPE;
BEGIN
  UPDATE walpost.dead_letter d SET status = 'replaying', next_retry_at = NULL, acted_by = session_user, acted_at = clock_timestamp()
  WHERE d.id = replay.id AND d.status IN ('pending', 'dead') RETURNING d.* INTO l;
  IF NOT FOUND THEN
    PERFORM walpost.refuse(replay.id, 'replayed');
  END IF;
  PERFORM walpost.acted(l, 'replay', NULL);
  RETURN l.status;
END $$;
COMMENT ON FUNCTION walpost.replay(bigint) IS 'publishes a pending or dead letter again; returns its new status';

CREATE FUNCTION walpost.ignore(id bigint, reason text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  l walpost.dead_letter%ROWTYPE;
BEGIN
  IF coalesce(btrim(reason), '') = '' THEN
    RAISE EXCEPTION USING ERRCODE = 'P0001', MESSAGE = format('dead letter %s is not ignored without a reason', ignore.id);
  END IF;
  UPDATE walpost.dead_letter d SET status = 'ignored', next_retry_at = NULL, acted_by = session_user, acted_at = clock_timestamp()
  WHERE d.id = ignore.id AND d.status IN ('pending', 'dead', 'held') RETURNING d.* INTO l;
  IF NOT FOUND THEN
    PERFORM walpost.refuse(ignore.id, 'ignored');
  END IF;
  PERFORM walpost.acted(l, 'ignore', jsonb_build_object('reason', reason));
  RETURN l.status;
END $$;
COMMENT ON FUNCTION walpost.ignore(bigint, text) IS 'gives a pending, dead or held letter up, with a reason; returns its new status';

CREATE FUNCTION walpost.resend(event_id text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  l walpost.dead_letter%ROWTYPE;
  older walpost.dead_letter%ROWTYPE;
  slots text[];
BEGIN
  IF coalesce(event_id, '') = '' THEN
    RAISE EXCEPTION USING ERRCODE = 'P0001', MESSAGE = 'resend needs an event id';
  END IF;
  SELECT * INTO older FROM walpost.dead_letter d WHERE d.event_id = resend.event_id ORDER BY d.id DESC LIMIT 1;
  IF NOT FOUND THEN
    SELECT array_agg(s.slot ORDER BY s.updated_at DESC) INTO slots FROM walpost.slot s;
    IF slots IS NULL THEN
      RAISE EXCEPTION USING ERRCODE = 'P0001', MESSAGE = 'there is no slot that would publish it';
    END IF;
  END IF;
  IF EXISTS (SELECT FROM walpost.dead_letter d WHERE d.event_id = resend.event_id AND d.error_class = 'resend' AND d.status = 'replaying') THEN
    PERFORM walpost.refuse((SELECT max(d.id) FROM walpost.dead_letter d WHERE d.event_id = resend.event_id AND d.error_class = 'resend' AND d.status = 'replaying'), 'resent again');
  END IF;
  INSERT INTO walpost.dead_letter AS d (slot, outbox, event_id, topic, status, error_class, acted_by, acted_at)
  VALUES (coalesce(older.slot, slots[1]), coalesce(older.outbox, ''), resend.event_id, coalesce(older.topic, ''), 'replaying', 'resend',
    session_user, clock_timestamp())
  RETURNING d.* INTO l;
  PERFORM walpost.acted(l, 'resend', NULL);
  RETURN l.status;
END $$;
COMMENT ON FUNCTION walpost.resend(text) IS 'publishes an event once more, from its letter or the outbox table; returns the status of the letter that it makes';

REVOKE ALL ON walpost.dead_letter, walpost.timeline FROM PUBLIC;
REVOKE ALL ON FUNCTION walpost.refuse(bigint, text), walpost.acted(walpost.dead_letter, text, jsonb), walpost.replay(bigint),
  walpost.ignore(bigint, text), walpost.resend(text) FROM PUBLIC;
