-- The scale factors and the bias of one product, in bytes: `Problem._scale_and_bias_bytes` of farm/gemm.py.

CREATE OR REPLACE FUNCTION scale_factors(blocks text, lines bigint, k bigint) RETURNS double precision LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT CASE blocks
        WHEN 'none' THEN 0
        WHEN 'tensor' THEN 1
        WHEN 'row' THEN lines
        WHEN '1x128' THEN lines * ceil(k / 128.0)::double precision
        WHEN '128x128' THEN ceil(lines / 128.0)::double precision * ceil(k / 128.0)::double precision
    END
$$;

CREATE OR REPLACE FUNCTION scale_and_bias_bytes(m bigint, n bigint, k bigint, cd text, scale text, fused text)
RETURNS double precision LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT CASE WHEN scale = 'none' THEN 0 ELSE 4 * (
            scale_factors(split_part(scale, ':', 1), m, k)
            + scale_factors(coalesce(nullif(split_part(scale, ':', 2), ''), scale), n, k)
        ) END
        + CASE WHEN fused LIKE 'bias%' THEN n::double precision * element_bytes(cd) ELSE 0 END
$$;
