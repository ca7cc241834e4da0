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
  -- Column name to text or null, of a row that no record could be made of.
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
-- Counting them reads no letter.
CREATE INDEX dead_letter_status ON walpost.dead_letter (slot, status);

-- Says why a verb is refused: what the letter is, by whom and since when; in the detail for programs.
CREATE FUNCTION walpost.refuse(letter walpost.dead_letter, verb text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  acted_at text := to_char(letter.acted_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"');
BEGIN
  RAISE EXCEPTION USING ERRCODE = 'P0001',
    MESSAGE = format('dead letter %s cannot be %s: it is %s%s%s', letter.id, verb, letter.status,
      CASE WHEN letter.status = 'held' AND letter.held_behind IS NOT NULL THEN format(' and waits behind %s', letter.held_behind) ELSE '' END,
      CASE WHEN letter.acted_by IS NOT NULL THEN format(' (by %s at %s)', letter.acted_by, acted_at) ELSE '' END),
    DETAIL = json_build_object('id', letter.id, 'status', letter.status, 'held_behind', letter.held_behind,
      'acted_by', letter.acted_by, 'acted_at', acted_at);
END $$;

-- Keeps the letter to this transaction, if its status allows the verb: of two at once the second waits, then is told of the first.
CREATE FUNCTION walpost.seize(letter_id bigint, verb text, allowed text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  l walpost.dead_letter%ROWTYPE;
BEGIN
  SELECT * INTO l FROM walpost.dead_letter d WHERE d.id = letter_id FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION USING ERRCODE = 'P0001', MESSAGE = format('there is no dead letter %s', coalesce(letter_id::text, 'NULL'));
  END IF;
  IF l.status <> ALL (allowed) THEN
    PERFORM walpost.refuse(l, verb);
  END IF;
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
  PERFORM walpost.seize(replay.id, 'replayed', ARRAY['pending', 'dead']);
  UPDATE walpost.dead_letter d SET status = 'replaying', next_retry_at = NULL, acted_by = session_user, acted_at = clock_timestamp()
  WHERE d.id = replay.id RETURNING d.* INTO l;
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
  PERFORM walpost.seize(ignore.id, 'ignored', ARRAY['pending', 'dead', 'held']);
  UPDATE walpost.dead_letter d SET status = 'ignored', next_retry_at = NULL, acted_by = session_user, acted_at = clock_timestamp()
  WHERE d.id = ignore.id RETURNING d.* INTO l;
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
  IF coalesce(resend.event_id, '') = '' THEN
    RAISE EXCEPTION USING ERRCODE = 'P0001', MESSAGE = 'resend needs an event id';
  END IF;
  -- One at a time for each event: of two at once the second sees what the first one made.
  PERFORM pg_advisory_xact_lock(hashtext('walpost.resend'), hashtext(resend.event_id));
  -- On its way already, or behind an older event of its key that it must not overtake.
  SELECT * INTO l FROM walpost.dead_letter d WHERE d.event_id = resend.event_id AND d.status IN ('held', 'replaying') ORDER BY d.id DESC LIMIT 1;
  IF FOUND THEN
    PERFORM walpost.refuse(l, 'resent');
  END IF;
  SELECT array_agg(s.slot ORDER BY s.slot) INTO slots FROM walpost.slot s;
  -- The letter of the event itself tells more than one of an earlier resend.
  SELECT * INTO older FROM walpost.dead_letter d WHERE d.event_id = resend.event_id AND d.slot = ANY (slots)
  ORDER BY d.error_class = 'resend' NULLS FIRST, d.id DESC LIMIT 1;
  IF NOT FOUND THEN
    IF slots IS NULL THEN
      RAISE EXCEPTION USING ERRCODE = 'P0001', MESSAGE = 'there is no slot that would publish it';
    ELSIF cardinality(slots) = 1 THEN
      older.slot := slots[1];
    ELSIF current_setting('walpost.slot', true) = ANY (slots) THEN
      older.slot := current_setting('walpost.slot', true);
    ELSE
      RAISE EXCEPTION USING ERRCODE = 'P0001', MESSAGE = format('several slots publish from this database: %s', array_to_string(slots, ', ')),
        HINT = 'Say whose event it is: SET walpost.slot = ''name''.';
    END IF;
  END IF;
  INSERT INTO walpost.dead_letter AS d (slot, outbox, event_id, topic, status, error_class, acted_by, acted_at)
  VALUES (older.slot, coalesce(older.outbox, ''), resend.event_id, coalesce(older.topic, ''), 'replaying', 'resend', session_user, clock_timestamp())
  RETURNING d.* INTO l;
  PERFORM walpost.acted(l, 'resend', NULL);
  RETURN l.status;
END $$;
COMMENT ON FUNCTION walpost.resend(text) IS 'publishes an event once more, from its letter or the outbox table; returns the status of the letter that it makes';

REVOKE ALL ON walpost.dead_letter, walpost.timeline FROM PUBLIC;
REVOKE ALL ON FUNCTION walpost.refuse(walpost.dead_letter, text), walpost.seize(bigint, text, text[]), walpost.acted(walpost.dead_letter, text, jsonb), walpost.replay(bigint),
  walpost.ignore(bigint, text), walpost.resend(text) FROM PUBLIC;
