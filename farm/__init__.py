"""GEMM Farm: the core and the coordinator.

Nothing in this package imports CUDA, the workers or the trainer. It reaches those by Celery task name.
"""

__version__ = "0.1.0"
