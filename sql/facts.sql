-- All that is watched of one slot, in one row of one JSON column.
-- $1 slot, $2 publication, $3 schemas and $4 names of the outbox tables.
-- Names in braces: what differs by the server's version and the database's content, put in by the caller.
WITH wanted AS (
  SELECT w.* FROM ROWS FROM (pg_catalog.unnest($3), pg_catalog.unnest($4)) WITH ORDINALITY AS w (schema, name, number)
), tab AS (
  SELECT w.number, c.oid, c.relkind, c.relispartition, c.relnamespace
  FROM wanted w JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
), line AS (
  -- Each table and the partitioned tables above it: a publication of any of them covers it.
  SELECT l.number, c.oid, c.relnamespace
  FROM (SELECT number, oid FROM tab UNION SELECT tab.number, a.relid FROM tab, pg_catalog.pg_partition_ancestors(tab.oid) a) l
    JOIN pg_catalog.pg_class c ON c.oid = l.oid
), pub AS (
  SELECT p.* , p.xmin::text AS version FROM pg_catalog.pg_publication p WHERE p.pubname = $2
), rel AS (
  SELECT line.number, r.oid, r.xmin::text AS version, r.prrelid AS relation, {filter} AS filter, {columns} AS columns
  FROM pub JOIN pg_catalog.pg_publication_rel r ON r.prpubid = pub.oid JOIN line ON line.oid = r.prrelid
), sch AS (
  {schemas}
), slot AS (
  SELECT * FROM pg_catalog.pg_replication_slots WHERE slot_name = $1
)
SELECT pg_catalog.json_build_object(
  'now', pg_catalog.clock_timestamp(),
  'database', pg_catalog.current_database(),
  'server', pg_catalog.json_build_object(
    'version', pg_catalog.split_part(pg_catalog.current_setting('server_version'), ' ', 1),
    'version_num', pg_catalog.current_setting('server_version_num')::int,
    'system_identifier', (SELECT system_identifier::text FROM pg_catalog.pg_control_system()),
    'timeline', CASE WHEN pg_catalog.pg_is_in_recovery()
      THEN (SELECT timeline_id FROM pg_catalog.pg_control_checkpoint())
      -- The control file follows a promotion only at the next checkpoint.
      ELSE ('x' || pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8))::bit(32)::int END,
    'in_recovery', pg_catalog.pg_is_in_recovery(),
    'wal_lsn', CASE WHEN pg_catalog.pg_is_in_recovery()
      THEN pg_catalog.pg_last_wal_receive_lsn() ELSE pg_catalog.pg_current_wal_lsn() END,
    'synchronous_standby_names', pg_catalog.current_setting('synchronous_standby_names')),
  'slot', (SELECT pg_catalog.to_json(s) FROM slot s),
  'holder', (SELECT pg_catalog.json_build_object('pid', s.active_pid, 'client', pg_catalog.host(a.client_addr),
      'application', a.application_name, 'since', a.backend_start, 'sync_state', r.sync_state)
    FROM slot s
      LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid
      LEFT JOIN pg_catalog.pg_stat_replication r ON r.pid = s.active_pid
    WHERE s.active_pid IS NOT NULL),
  'tables', (SELECT pg_catalog.json_agg(pg_catalog.json_build_object(
      'table', (SELECT pg_catalog.json_build_object('oid', oid::bigint, 'kind', relkind, 'partition', relispartition,
          'columns', (SELECT coalesce(pg_catalog.json_agg(pg_catalog.json_build_object('name', attname, 'generated', attgenerated) ORDER BY attnum), '[]')
            FROM pg_catalog.pg_attribute WHERE attrelid = tab.oid AND attnum > 0 AND NOT attisdropped))
        FROM tab WHERE tab.number = w.number),
      'published', (SELECT pg_catalog.json_build_object(
          'names_table', puballtables OR EXISTS (SELECT FROM rel JOIN tab USING (number) WHERE rel.number = w.number AND rel.relation = tab.oid)
            OR EXISTS (SELECT FROM sch JOIN tab USING (number) WHERE sch.number = w.number AND sch.schema = tab.relnamespace),
          'names_root', puballtables
            OR EXISTS (SELECT FROM rel WHERE rel.number = w.number AND rel.relation NOT IN (SELECT oid FROM tab WHERE tab.number = w.number))
            OR EXISTS (SELECT FROM sch JOIN line ON line.number = sch.number AND line.relnamespace = sch.schema
              WHERE sch.number = w.number AND line.oid NOT IN (SELECT oid FROM tab WHERE tab.number = w.number)),
          'filter', (SELECT pg_catalog.min(filter) FROM rel WHERE rel.number = w.number),
          'columns', (SELECT columns FROM rel WHERE rel.number = w.number AND columns IS NOT NULL LIMIT 1),
          -- Whatever touches the publication's hold on the table writes one of these rows anew.
          'fingerprint', pg_catalog.json_build_object(
            'publication', pg_catalog.json_build_object('oid', pub.oid::bigint, 'xmin', pub.version),
            'tables', (SELECT coalesce(pg_catalog.json_agg(pg_catalog.json_build_object('oid', oid::bigint, 'xmin', version, 'relation', relation::bigint) ORDER BY oid), '[]')
              FROM rel WHERE rel.number = w.number),
            'schemas', (SELECT coalesce(pg_catalog.json_agg(pg_catalog.json_build_object('oid', oid::bigint, 'xmin', version, 'schema', schema::bigint) ORDER BY oid), '[]')
              FROM sch WHERE sch.number = w.number),
            'table', (SELECT oid::bigint FROM tab WHERE tab.number = w.number),
            'filter', (SELECT pg_catalog.min(filter) FROM rel WHERE rel.number = w.number),
            'columns', (SELECT columns FROM rel WHERE rel.number = w.number AND columns IS NOT NULL LIMIT 1){attached}))
        FROM pub)) ORDER BY w.number)
    FROM wanted w),
  'publication', (SELECT pg_catalog.json_build_object(
      'insert', pubinsert, 'update', pubupdate, 'delete', pubdelete, 'truncate', pubtruncate,
      'all_tables', puballtables, 'via_root', pubviaroot, 'generated', {generated})
    FROM pub),
  'schema_version', {version},
  'record', {record}
)
