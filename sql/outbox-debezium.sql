-- The outbox, as Debezium's outbox event router reads it: the application inserts a row in the transaction whose event it is.
CREATE TABLE {table} (
  id uuid PRIMARY KEY DEFAULT {event_id},
  -- Routes to the topic.
  aggregatetype character varying(255) NOT NULL,
  -- The record's key: events of one aggregate arrive in commit order.
  aggregateid character varying(255),
  type character varying(255) NOT NULL,
  -- The record's value, as PostgreSQL prints it; may also be json, text or bytea. NULL is a tombstone.
  payload jsonb
);
