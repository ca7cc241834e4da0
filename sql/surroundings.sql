-- What `check` alone looks at, in one row of one JSON column. $1: the publication.
SELECT pg_catalog.json_build_object(
  'wal_level', pg_catalog.current_setting('wal_level'),
  'max_replication_slots', pg_catalog.current_setting('max_replication_slots')::int,
  'slots', (SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_slots),
  -- In milliseconds and in megabytes.
  'wal_sender_timeout', (SELECT setting::bigint FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'),
  'max_slot_wal_keep_size', (SELECT setting::bigint FROM pg_catalog.pg_settings WHERE name = 'max_slot_wal_keep_size'),
  'denied', (SELECT coalesce(pg_catalog.json_agg(c.relname ORDER BY c.relname), '[]')
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'walpost' AND c.relkind IN ('r', 'p') AND c.relname <> 'meta'
      AND NOT (pg_catalog.has_table_privilege(c.oid, 'SELECT') AND pg_catalog.has_table_privilege(c.oid, 'INSERT')
        AND pg_catalog.has_table_privilege(c.oid, 'UPDATE') AND pg_catalog.has_table_privilege(c.oid, 'DELETE'))),
  -- Tables whose updates and deletes the server refuses while a publication publishes those.
  'keyless', (SELECT coalesce(pg_catalog.json_agg(k.name ORDER BY k.name), '[]') FROM (
    SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) AS name
    FROM pg_catalog.pg_publication_tables t JOIN pg_catalog.pg_publication p USING (pubname)
      JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname
      JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
    WHERE t.pubname = $1 AND (p.pubupdate OR p.pubdelete)
      AND (c.relreplident = 'n' OR c.relreplident = 'd'
        AND NOT EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisprimary))
    ORDER BY 1 LIMIT 20) k))
