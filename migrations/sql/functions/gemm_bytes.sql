-- The compulsory memory traffic of a problem, in bytes: `Problem.bytes` of farm/gemm.py. Not STRICT: such functions with CASE are not
-- inlined, and columns of problems are not null.

CREATE OR REPLACE FUNCTION scale_factors(blocks text, lines bigint, k bigint) RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE blocks
        WHEN 'none' THEN 0
        WHEN 'tensor' THEN 1
        WHEN 'row' THEN lines
        WHEN '1x128' THEN lines * ceil(k / 128.0)::double precision
        WHEN '1x64' THEN lines * ceil(k / 64.0)::double precision
        WHEN '1x32' THEN lines * ceil(k / 32.0)::double precision
        WHEN '128x128' THEN ceil(lines / 128.0)::double precision * ceil(k / 128.0)::double precision
    END
$$;

-- How many groups are not empty: 9 of '16*8,3,0*4'. 1 where there are none.
CREATE OR REPLACE FUNCTION active_groups(groups text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN groups = 'none' THEN 1 ELSE (
        SELECT coalesce(sum(coalesce(nullif(split_part(run, '*', 2), ''), '1')::bigint), 0)
        FROM unnest(string_to_array(groups, ',')) AS run WHERE split_part(run, '*', 1)::bigint > 0
    ) END
$$;

-- One matrix B. Of a sparse one, the elements that are kept, and two bits for the index of each.
CREATE OR REPLACE FUNCTION bytes_of_b(n bigint, k bigint, ab text, sparsity text) RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE sparsity
        WHEN 'none' THEN k::double precision * n * element_bytes_of_b(ab)
        WHEN '2:4' THEN floor(((k + 3) / 4 + (k + 2) / 4)::double precision * n * element_bytes_of_b(ab))
            + ceil(((k + 3) / 4 + (k + 2) / 4) * n / 4.0)::double precision
    END
$$;

CREATE OR REPLACE FUNCTION gemm_bytes(
    m bigint, n bigint, k bigint, ab text, cd text, beta double precision, batch bigint, scale text, fused text, groups text, sparsity text
) RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
    SELECT batch * (
        m::double precision * k * element_bytes(ab)
        + m::double precision * CASE WHEN fused LIKE '%swiglu' THEN n / 2 ELSE n END * element_bytes(cd)
            * CASE WHEN beta = 0 THEN 1 ELSE 2 END
        + 4 * scale_factors(split_part(scale, ':', 1), m, k)
        + CASE WHEN groups = 'none' THEN 1 ELSE active_groups(groups) END * (
            bytes_of_b(n, k, ab, sparsity)
            + CASE WHEN scale = 'none' THEN 0 ELSE CASE WHEN scale LIKE 'none:%' THEN 2 ELSE 4 END
                * scale_factors(coalesce(nullif(split_part(scale, ':', 2), ''), scale), n, k) END
            + CASE WHEN fused LIKE 'bias%' THEN n::double precision * element_bytes(cd) ELSE 0 END
        )
    )
$$;
