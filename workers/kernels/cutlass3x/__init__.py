"""CUTLASS 3.x kernels on a card: libraries that were built ahead of time, loaded and launched."""
