#!/bin/sh
# Makes the databases farm and mlflow, each owned by a role of its own, shuts the superuser out of the network, and takes the right to
# make large objects from everybody else.
#
# Postgres runs this when it makes its data. Run it by hand to change a password, and once for a farm of an older version: it
# takes the tables over from the superuser that owned them. See docs/operating.md, "From one superuser to roles".
#
# Reads POSTGRES_USER (a superuser), OWNER_PASSWORD and MLFLOW_DATABASE_PASSWORD.
set -eu
: "${POSTGRES_USER:?}" "${OWNER_PASSWORD:?}" "${MLFLOW_DATABASE_PASSWORD:?}"

run() {
  psql --no-psqlrc --no-password --quiet --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" "$@"
}

# Passwords come from the environment: no command line and no file holds them. The server's log does not either, whatever
# its settings and errors.
run --dbname postgres >/dev/null <<'SQL'
SET log_statement = 'none';
SET log_min_error_statement = 'panic';
\getenv owner_password OWNER_PASSWORD
\getenv mlflow_password MLFLOW_DATABASE_PASSWORD
SELECT format('CREATE ROLE %I', name) FROM unnest(ARRAY['farm_owner', 'mlflow']) AS name
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name)
\gexec
ALTER ROLE farm_owner LOGIN CREATEROLE NOSUPERUSER NOCREATEDB NOREPLICATION NOBYPASSRLS PASSWORD :'owner_password';
ALTER ROLE mlflow LOGIN NOCREATEROLE NOSUPERUSER NOCREATEDB NOREPLICATION NOBYPASSRLS PASSWORD :'mlflow_password';
-- So that `farm db roles` may let the application see who holds locks.
GRANT pg_read_all_stats TO farm_owner WITH ADMIN OPTION;
-- So that `farm hosts add` may limit the temporary files of worker hosts.
GRANT SET ON PARAMETER temp_file_limit TO farm_owner;
SELECT format('CREATE DATABASE %I OWNER %I', name, owner)
FROM (VALUES ('farm', 'farm_owner'), ('mlflow', 'mlflow')) AS needed (name, owner)
WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = name)
\gexec
ALTER DATABASE farm OWNER TO farm_owner;
ALTER DATABASE mlflow OWNER TO mlflow;
REVOKE ALL ON DATABASE mlflow FROM PUBLIC;
SQL

# Whatever a superuser made in these databases belongs to their owners from now on.
for database in farm mlflow; do
  run --dbname "$database" >/dev/null <<'SQL'
BEGIN;
SELECT datdba::regrole AS owner, datdba AS owner_oid FROM pg_database WHERE datname = current_database()
\gset
SELECT format('ALTER TABLE %s OWNER TO %s', c.oid::regclass, :'owner')
FROM pg_class c
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'S') AND c.relowner <> :owner_oid
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype IN ('a', 'i', 'e'))
\gexec
SELECT format('ALTER ROUTINE %s OWNER TO %s', f.oid::regprocedure, :'owner')
FROM pg_proc f
WHERE f.pronamespace = 'public'::regnamespace AND f.proowner <> :owner_oid
  AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_proc'::regclass AND d.objid = f.oid AND d.deptype = 'e')
\gexec
SELECT format('ALTER TYPE %s OWNER TO %s', t.oid::regtype, :'owner')
FROM pg_type t
WHERE t.typnamespace = 'public'::regnamespace AND t.typtype IN ('e', 'd') AND t.typowner <> :owner_oid
\gexec
-- The owner keeps the roles that were given rights here, as those of workers and readers.
SELECT DISTINCT format('GRANT %I TO %s WITH ADMIN TRUE, INHERIT FALSE, SET FALSE', r.rolname, :'owner')
FROM (SELECT relacl AS acl FROM pg_class WHERE relnamespace = 'public'::regnamespace
      UNION ALL
      SELECT attacl FROM pg_attribute t JOIN pg_class c ON c.oid = t.attrelid WHERE c.relnamespace = 'public'::regnamespace) held
CROSS JOIN LATERAL aclexplode(held.acl) a JOIN pg_roles r ON r.oid = a.grantee
WHERE NOT r.rolsuper AND r.oid <> :owner_oid
  AND NOT EXISTS (SELECT FROM pg_auth_members m WHERE m.roleid = r.oid AND m.member = :owner_oid AND m.admin_option)
\gexec
COMMIT;
SQL
done

# Every role may make large objects, in any database that it can connect to, until the disk is full. The farm and MLflow use none.
# template1: databases that are made later, as for a restored backup.
for database in template1 postgres farm mlflow; do
  run --dbname "$database" >/dev/null <<'SQL'
SELECT format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', oid::regprocedure)
FROM pg_proc
WHERE pronamespace = 'pg_catalog'::regnamespace
  AND proname IN ('lo_creat', 'lo_create', 'lo_from_bytea', 'lo_put', 'lo_truncate', 'lo_truncate64', 'lowrite')
\gexec
REVOKE TEMPORARY ON DATABASE :"DBNAME" FROM PUBLIC;
SQL
done

# Superusers log in through the socket inside the container only.
hba=$(run --dbname postgres --tuples-only --no-align --command 'SHOW hba_file')
rule="host all $POSTGRES_USER all reject"
if ! grep -qxF "$rule" "$hba"; then
  { printf '%s\n' "$rule"; cat "$hba"; } >"$hba.new"
  mv "$hba.new" "$hba"
  run --dbname postgres --command 'SELECT pg_reload_conf()' >/dev/null
fi
