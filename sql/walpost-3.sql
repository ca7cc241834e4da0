-- Version 3: what operators did that lets the slot pass rows, or drops them.

CREATE TABLE walpost.audit_log (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at timestamptz NOT NULL DEFAULT pg_catalog.now(),
  who text NOT NULL DEFAULT session_user,
  verb text NOT NULL,
  dead_letter_id bigint,
  event_id text,
  detail jsonb
);
COMMENT ON TABLE walpost.audit_log IS 'actions of operators';
REVOKE ALL ON walpost.audit_log FROM PUBLIC;
