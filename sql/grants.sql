-- By the owner of database {database}:
GRANT CONNECT ON DATABASE {database} TO {role};
-- The owner of table {table} needs CREATE on the database to make the publication; revoke it afterwards:
-- GRANT CREATE ON DATABASE {database} TO table_owner;
-- Optional, by the table's owner. For `init --include-existing`, `recover`, `replay` and `dead-letters resend`, which read the table; lets init count the rows that it leaves out:
-- GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT SELECT ON {table} TO {role};
