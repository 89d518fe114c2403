"""Traces: the GEMMs that a program computed, from what PyTorch and cuBLASLt recorded of it.

>>> from farm.traces.formats import read_trace
>>> read_trace(Path("tunableop_untuned0.csv")).gemms  # doctest: +SKIP

`formats` has the formats. Each is one module.
"""
