"""Element types that NumPy does not have: their numbers, and what marks an element as not written."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.gemm import OUTPUT_TYPES, ElementType
from workers.measure.elements import INTEGER_SPAN, STORAGE, UNIT_ROUNDOFF, decode, encode, poison, unwritten

SINGLE = [kind for kind in ElementType if kind.of_a is kind.of_b]
FLOATS = [kind for kind in SINGLE if kind not in (ElementType.I8, ElementType.I32, ElementType.I4)]
SMALLEST_NORMAL = {
    ElementType.F8E4M3: 2.0**-6,
    ElementType.F8E5M2: 2.0**-14,
    ElementType.F16: 2.0**-14,
    ElementType.F4: 1.0,
}


@pytest.mark.parametrize("kind", SINGLE)
def test_storage_has_the_size_that_the_domain_counts(kind: ElementType) -> None:
    assert np.dtype(STORAGE[kind]).itemsize == kind.bytes


@pytest.mark.parametrize("kind", FLOATS)
@given(number=st.floats(-1, 1, width=32))
def test_an_element_is_the_nearest_number_of_its_type(kind: ElementType, number: float) -> None:
    element = float(decode(kind, encode(kind, np.array([number], np.float32)))[0])
    # 8-bit floats are rounded twice, first to f16.
    allowed = UNIT_ROUNDOFF[kind] * max(abs(number), SMALLEST_NORMAL.get(kind, 2.0**-126)) + (
        2**-12 if kind.bytes == 1 else 0
    )
    assert abs(element - number) <= allowed
    assert math.copysign(1, element) == math.copysign(1, number)


@pytest.mark.parametrize("kind", FLOATS)
def test_numbers_of_a_type_stay_as_they_are(kind: ElementType) -> None:
    once = encode(kind, np.linspace(-1, 1, 4001, dtype=np.float32))
    again = encode(kind, decode(kind, once).astype(np.float32))
    assert np.array_equal(once, again)


@pytest.mark.parametrize(
    ("kind", "pattern", "number"),
    [
        (ElementType.F8E4M3, 0x7E, 448.0),
        (ElementType.F8E4M3, 0x08, 2.0**-6),
        (ElementType.F8E4M3, 0x01, 2.0**-9),
        (ElementType.F8E4M3, 0xB8, -1.0),
        (ElementType.F8E5M2, 0x7B, 57344.0),
        (ElementType.F8E5M2, 0x7C, math.inf),
        (ElementType.F8E5M2, 0x01, 2.0**-16),
        (ElementType.F8E5M2, 0xBC, -1.0),
        (ElementType.BF16, 0x3F80, 1.0),
        (ElementType.BF16, 0xC049, -3.140625),
    ],
)
def test_patterns_mean_what_the_formats_say(kind: ElementType, pattern: int, number: float) -> None:
    assert decode(kind, np.array([pattern], STORAGE[kind]))[0] == number


@pytest.mark.parametrize(("kind", "largest"), [(ElementType.F8E4M3, 448), (ElementType.F8E5M2, 57344)])
def test_8_bit_floats_never_become_infinite(kind: ElementType, largest: float) -> None:
    numbers = np.array([-np.inf, -1e5, 6e4, np.inf], np.float32)
    assert decode(kind, encode(kind, numbers)).tolist() == [-largest, -largest, largest, largest]


def test_integers_span_all_but_the_smallest() -> None:
    elements = encode(ElementType.I8, np.array([-1.5, -1, -0.4999, 0, 1], np.float32))
    assert elements.tolist() == [-INTEGER_SPAN, -INTEGER_SPAN, -63, 0, INTEGER_SPAN]


@pytest.mark.parametrize("kind", [kind for kind in SINGLE if kind in OUTPUT_TYPES])
def test_poison_is_seen_and_nothing_else_is(kind: ElementType) -> None:
    poisoned = np.full(3, poison(kind), STORAGE[kind])
    assert unwritten(kind, poisoned).all()
    poisoned[1] = 0
    assert unwritten(kind, poisoned).tolist() == [True, False, True]
    if kind is not ElementType.I32:
        assert not unwritten(kind, encode(kind, np.linspace(-1, 1, 1001, dtype=np.float32))).any()


@pytest.mark.parametrize("kind", [ElementType.F16, ElementType.BF16, ElementType.F8E5M2])
def test_an_infinite_result_counts_as_written(kind: ElementType) -> None:
    infinite = {ElementType.F16: 0x7C00, ElementType.BF16: 0xFF80, ElementType.F8E5M2: 0x7C}[kind]
    unsigned = np.uint8 if kind.bytes == 1 else np.uint16
    element = np.array([infinite], unsigned).view(STORAGE[kind])
    assert not unwritten(kind, element)[0]
    assert np.isinf(decode(kind, element)[0])
