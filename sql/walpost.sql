-- Version 1 of schema walpost: what `walpost init` writes down and `walpost run` keeps up to date.
-- Every table has a primary key, so a publication FOR ALL TABLES does not make their updates fail.

CREATE TABLE walpost.meta (
  version integer NOT NULL,
  one boolean NOT NULL DEFAULT true PRIMARY KEY CHECK (one)
);
COMMENT ON TABLE walpost.meta IS 'version of this schema; one row';

CREATE TABLE walpost.slot (
  slot text PRIMARY KEY,
  state text NOT NULL CHECK (state IN ('creating', 'backfilling', 'ready')),
  -- Whose slot it is: a copy of the database elsewhere is told from the original.
  system_identifier text,
  database text,
  plugin text,
  -- Rows committed after it are in the slot.
  consistent_point pg_catalog.pg_lsn,
  -- Fingerprint of the publication's hold on the outbox table.
  publication jsonb,
  -- Raised whenever the slot is made anew: positions of another life may repeat.
  life integer NOT NULL DEFAULT 1,
  -- Raised by each publisher when it takes over.
  epoch bigint NOT NULL DEFAULT 0,
  confirmed_lsn pg_catalog.pg_lsn,
  committed_at timestamptz,
  reserved_lsn pg_catalog.pg_lsn,
  holder text,
  updated_at timestamptz NOT NULL DEFAULT pg_catalog.now()
);
COMMENT ON TABLE walpost.slot IS 'slots that walpost init made, and how far walpost run confirmed';

REVOKE ALL ON ALL TABLES IN SCHEMA walpost FROM PUBLIC;
