-- Who may do what, for role {role}, database {database} and table {table}.

-- By a superuser; on PostgreSQL 16 and later by a role with CREATEROLE and REPLICATION:
CREATE ROLE {role} LOGIN REPLICATION;   -- then, in psql: \password {role}

-- By the database's owner:
GRANT CONNECT ON DATABASE {database} TO {role};
CREATE SCHEMA walpost AUTHORIZATION {role};   -- by a superuser or a member of {role}

-- By the table's owner, who needs CREATE on the database to make the publication:
-- GRANT CREATE ON DATABASE {database} TO table_owner;   -- by the database's owner; revoke it afterwards

-- Optional. For `init --include-existing` and `recover`, which read the table; lets init count the rows that it leaves out:
-- GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT SELECT ON {table} TO {role};
-- Optional. Lets status name other sessions' client and age, and see who is a synchronous standby:
-- GRANT pg_read_all_stats TO {role};
