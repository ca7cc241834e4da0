-- Version 4: marks, each a place in the log and a transaction number that belong together.

CREATE TABLE walpost.mark (
  -- Every transaction older than xid had ended, its commit record below lsn.
  lsn pg_catalog.pg_lsn PRIMARY KEY,
  xid pg_catalog.xid8 NOT NULL,
  at timestamptz NOT NULL
);
COMMENT ON TABLE walpost.mark IS 'places in the log with the oldest transaction open there; tell which rows of the table precede a lost position';

REVOKE ALL ON walpost.mark FROM PUBLIC;
