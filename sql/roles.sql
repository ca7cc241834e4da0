-- By a superuser, in database {database}; on PostgreSQL 16 and later a role with CREATEROLE and REPLICATION may do it,
-- which then needs CREATE on the database for the schema:
CREATE ROLE {role} LOGIN REPLICATION;   -- then, in psql: \password {role}
CREATE SCHEMA walpost AUTHORIZATION {role};   -- by a superuser or a member of {role}
-- Optional. Lets status name other sessions' client and age, and see who is a synchronous standby:
-- GRANT pg_read_all_stats TO {role};
-- Optional. A role for operators, who act on dead letters; members of it are named in the audit log:
-- CREATE ROLE walpost_operator NOLOGIN;
