-- The size of one element of a matrix, in bytes: of a pair of input types, that of A.

CREATE OR REPLACE FUNCTION element_bytes(element_type text) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE element_type
        WHEN 'f64' THEN 8
        WHEN 'f32' THEN 4 WHEN 'tf32' THEN 4 WHEN 'i32' THEN 4
        WHEN 'f16' THEN 2 WHEN 'bf16' THEN 2
        WHEN 'f8e4m3' THEN 1 WHEN 'f8e5m2' THEN 1 WHEN 'f8e4m3e5m2' THEN 1 WHEN 'f8e5m2e4m3' THEN 1 WHEN 'i8' THEN 1
        WHEN 'f16i8' THEN 2 WHEN 'bf16i8' THEN 2 WHEN 'f16i4' THEN 2 WHEN 'bf16i4' THEN 2 WHEN 'f16f4' THEN 2 WHEN 'bf16f4' THEN 2
    END
$$;

-- That of B, which of weights of few bits is another one.
CREATE OR REPLACE FUNCTION element_bytes_of_b(element_type text) RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN element_type IN ('f16i4', 'bf16i4', 'f16f4', 'bf16f4') THEN 0.5
        WHEN element_type IN ('f16i8', 'bf16i8') THEN 1
        ELSE element_bytes(element_type)
    END
$$;
