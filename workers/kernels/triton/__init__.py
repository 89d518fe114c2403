"""Triton kernels on a card: cubins that were built ahead of time, loaded and launched. Triton itself is not needed."""
