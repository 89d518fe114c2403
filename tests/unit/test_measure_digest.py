"""The digest of a result: what changes it, and what does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from workers.measure import digest as digests
from workers.measure.digest import BITS, difference, digest, text

TYPES = [np.uint8, np.int8, np.float16, np.uint16, np.float32, np.int32, np.float64]

MASK = 2**64 - 1


def as_defined(d: Any) -> int:
    """The definition, in Python's integers."""
    total = 0
    for index, element in enumerate(np.ascontiguousarray(d).view(BITS[d.itemsize]).ravel().tolist()):
        z = (element + (index + 1) * 0x9E3779B97F4A7C15) & MASK
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
        z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
        total += z ^ z >> 31
    return total & MASK


def results(dtype: Any, largest: int = 12) -> Any:
    bits = BITS[np.dtype(dtype).itemsize]
    shapes = arrays.array_shapes(min_dims=2, max_dims=2, max_side=largest)
    return arrays.arrays(bits, shapes).map(lambda found: found.view(dtype))


@pytest.mark.parametrize("dtype", TYPES)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_the_digest_is_the_documented_sum(dtype: Any, data: st.DataObject) -> None:
    d = data.draw(results(dtype))
    assert digest(d) == as_defined(d)


@pytest.mark.parametrize("dtype", TYPES)
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_every_flipped_bit_changes_the_digest(dtype: Any, data: st.DataObject) -> None:
    d = data.draw(results(dtype))
    row, column = (data.draw(st.integers(0, extent - 1)) for extent in d.shape)
    right = digest(d)
    bits = d.view(BITS[d.itemsize])
    for bit in range(8 * d.itemsize):
        bits[row, column] ^= bits.dtype.type(1 << bit)
        assert digest(d) != right
        bits[row, column] ^= bits.dtype.type(1 << bit)
    assert digest(d) == right


@pytest.mark.parametrize("dtype", TYPES)
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_swapped_elements_change_the_digest_unless_they_are_equal(dtype: Any, data: st.DataObject) -> None:
    d = data.draw(results(dtype))
    flat = d.view(BITS[d.itemsize]).reshape(-1)
    one, other = (data.draw(st.integers(0, flat.size - 1)) for _ in range(2))
    before = digest(d)
    flat[[one, other]] = flat[[other, one]]
    assert (digest(d) == before) == (flat[one] == flat[other])


@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_whole_rows_columns_and_patterns_change_the_digest(data: st.DataObject) -> None:
    d = data.draw(results(np.float32))
    flips = data.draw(arrays.arrays(np.uint32, d.shape))
    before = digest(d)
    d.view(np.uint32)[...] ^= flips
    assert (digest(d) == before) == (not flips.any())


def test_payloads_of_nan_and_the_sign_of_zero_are_bits() -> None:
    nans = np.array([[0x7FC00000], [0x7FC00001]], np.uint32).view(np.float32)
    assert digest(nans[:1]) != digest(nans[1:])
    assert digest(np.zeros((3, 3))) != digest(-np.zeros((3, 3)))


@pytest.mark.parametrize("shape", [(1, 1), (3, 70_001), (70_001, 3), (300, 257)])
def test_a_view_has_the_digest_of_its_elements(shape: tuple[int, int]) -> None:
    rows, columns = shape
    wide = np.random.default_rng(1).integers(0, 2**16, (rows, columns + 5), dtype=np.uint16)
    view = wide[:, 2 : columns + 2]
    assert digest(view) == digest(view.copy()) == digest(np.asfortranarray(view))
    turned = np.ascontiguousarray(view.T)
    assert digest(turned.T) == digest(view)
    assert rows == 1 or columns == 1 or digest(turned) != digest(view)


def test_blocks_do_not_show_in_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    d = np.random.default_rng(2).standard_normal((37, 91))
    whole = digest(d)
    for block in (1, 7, 91, 1000):
        monkeypatch.setattr(digests, "_BLOCK", block)
        assert digest(d) == digest(d[:, :]) == whole


def test_the_first_rows_have_a_digest_of_their_own() -> None:
    d = np.random.default_rng(3).standard_normal((8, 5))
    assert digest(d[:3]) == digest(d[:3].copy())
    assert digest(d[:3]) != digest(d[1:4])


def test_a_digest_is_written_with_16_digits() -> None:
    assert text(0x1F) == "000000000000001f"
    assert text(2**64 - 1) == "f" * 16


def test_a_difference_names_the_first_element_and_how_many_there_are() -> None:
    before = np.arange(30, dtype=np.float16).reshape(5, 6)
    after = before.copy()
    assert difference(before, after) is None
    after.view(np.uint16)[2, 4] ^= 1
    after[4, 0] = np.nan
    found = difference(before, after)
    assert found is not None
    assert (found.elements, found.of, found.row, found.column) == (2, 30, 2, 4)
    assert found.before ^ found.after == 1
    assert str(found) == "2 of 30 elements differ, the first at (2, 4), where 0x4c00 became 0x4c01"
