"""CUTLASS kernels, built ahead of time where no GPU is needed: what a binary is, its compiler, and the cache of binaries."""
