"""What the migrations made of a database, for comparison: tables, views, functions and their definitions, without rights and rows."""

from __future__ import annotations

from sqlalchemy import Engine, text

_OBJECTS = text("""
SELECT 'function', p.proname, pg_get_functiondef(p.oid)
FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace AND p.prokind IN ('f', 'p')
UNION ALL
SELECT 'column', format('%s.%s', a.attrelid::regclass, a.attname), concat_ws(' ', format_type(a.atttypid, a.atttypmod),
    CASE WHEN a.attnotnull THEN 'NOT NULL' END, pg_get_expr(d.adbin, d.adrelid), nullif(a.attidentity, ''))
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm') AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL
SELECT 'constraint', format('%s.%s', conrelid::regclass, conname), pg_get_constraintdef(oid)
FROM pg_constraint WHERE connamespace = 'public'::regnamespace
UNION ALL
SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'
UNION ALL
SELECT 'trigger', format('%s.%s', tgrelid::regclass, tgname), pg_get_triggerdef(t.oid) FROM pg_trigger t WHERE NOT tgisinternal
UNION ALL
SELECT 'view', viewname, definition FROM pg_views WHERE schemaname = 'public'
""")


def schema(engine: Engine) -> dict[tuple[str, str], str]:
    """The definition of each object in the schema `public`, by its kind and name."""
    with engine.connect() as connection:
        return {(kind, name): definition for kind, name, definition in connection.execute(_OBJECTS)}


def differences(one: dict[tuple[str, str], str], other: dict[tuple[str, str], str]) -> dict[tuple[str, str], object]:
    """By kind and name, the two definitions of what differs; None for what is not there."""
    return {name: (one.get(name), other.get(name)) for name in {*one, *other} if one.get(name) != other.get(name)}
