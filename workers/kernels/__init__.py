"""CUDA C++ sources and what is needed to compile and launch them."""
