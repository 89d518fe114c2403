-- The size of one element of a matrix, in bytes. In a pair of FP8 types, A and B differ in type and not in size.

CREATE OR REPLACE FUNCTION element_bytes(element_type text) RETURNS integer LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE element_type
        WHEN 'f64' THEN 8
        WHEN 'f32' THEN 4 WHEN 'tf32' THEN 4 WHEN 'i32' THEN 4
        WHEN 'f16' THEN 2 WHEN 'bf16' THEN 2
        WHEN 'f8e4m3' THEN 1 WHEN 'f8e5m2' THEN 1 WHEN 'f8e4m3e5m2' THEN 1 WHEN 'f8e5m2e4m3' THEN 1 WHEN 'i8' THEN 1
    END
$$;
