-- Identities that workers must not choose: the SHA-256 of the canonical line of a configuration, and of the content of an
-- environment. As in farm.kernels.configuration.

CREATE OR REPLACE FUNCTION configuration_id(
    p_m bigint, p_n bigint, p_k bigint, p_ab text, p_cd text, p_acc text, p_layout text, p_alpha float8, p_beta float8,
    p_family text, p_parameters jsonb
) RETURNS uuid LANGUAGE sql STABLE SET extra_float_digits = 1 AS $$
    WITH number AS (
        SELECT of, CASE WHEN abs(value) >= 1e15 AND abs(value) < 1e16 THEN value::text::numeric::text ELSE value::text END AS line
        FROM (VALUES ('alpha', p_alpha), ('beta', p_beta)) AS given(of, value)
    )
    SELECT encode(substring(sha256(convert_to(format(
        '%s(%s) %sx%sx%s %s:%s:%s %s alpha=%s beta=%s', p_family,
        (SELECT string_agg(key || '=' || value, ',' ORDER BY key COLLATE "C") FROM jsonb_each_text(p_parameters)),
        p_m, p_n, p_k, p_ab, p_cd, p_acc, p_layout,
        (SELECT line FROM number WHERE of = 'alpha'), (SELECT line FROM number WHERE of = 'beta')
    ), 'UTF8')) FOR 16), 'hex')::uuid
$$;

CREATE OR REPLACE FUNCTION environment_ids(p_contents text[]) RETURNS uuid[] LANGUAGE sql IMMUTABLE AS $$
    SELECT ARRAY(
        SELECT encode(substring(sha256(convert_to(content, 'UTF8')) FOR 16), 'hex')::uuid
        FROM unnest(p_contents) WITH ORDINALITY AS c(content, place) ORDER BY place
    )
$$;
