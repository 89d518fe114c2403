"""The normal equations of constants that rows share: each row has one kernel, which is what makes them cheap.

A constant of a row is a sum over levels: parts that the row's kernel has to itself, parts of the kernel in one layout, and parts
that kernels share. Two kernels' own parts never meet in an equation, so the matrix is an arrow. Each kernel's own parts are
eliminated separately, which leaves those that are shared: a few hundred unknowns instead of thousands. The result is
that of one Cholesky factorisation of the whole matrix (Golub and Van Loan, Matrix Computations, 4.3).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve, cholesky, solve_triangular

from farm.forest.numeric import Array, Floats

_SHARE = 0.05
"""Damping adds this share of the curvature (Marquardt) and a constant of 1 (Levenberg)."""


@dataclass(frozen=True)
class _Kernel:
    """Rows of a kernel, its key, the keys of it in layouts, and which of these each row has."""

    rows: slice
    key: int
    layouts: Array
    of_row: Array


class NormalEquations:
    """Steps of Levenberg and Marquardt for unknowns [keys, constants]."""

    def __init__(self, kernels: Array, within: Array, shared: Sequence[Array], few: Array, priors: Floats) -> None:
        """Takes what does not change from step to step.

        Args:
            kernels: The key of each row's kernel, [rows]; rows of one kernel are together.
            within: The key of each row's kernel in its layout, [rows].
            shared: The keys of the other levels, [rows] each.
            few: The constants that a kernel may have others of in each layout.
            priors: One over the variance of each key's part, [keys].
        """
        self._few, self._priors = few, priors
        # The keys that kernels share, and where each row has them among these.
        self._shared, place = np.unique(np.array(shared), return_inverse=True)
        self._place = place.reshape(len(shared), -1)
        ends = [0, *(np.flatnonzero(np.diff(kernels)) + 1).tolist(), len(kernels)]
        self._kernels = []
        for begin, end in itertools.pairwise(ends):
            layouts, of_row = np.unique(within[begin:end], return_inverse=True)
            self._kernels.append(_Kernel(slice(begin, end), int(kernels[begin]), layouts, of_row.ravel()))

    def weigh(self, slopes: Floats) -> None:
        """Takes the derivatives [rows, constants], times the square roots of the weights of rows."""
        rows, constants = slopes.shape
        spread = np.zeros((rows, len(self._shared), constants))
        for place in self._place:
            spread[np.arange(rows), place] += slopes
        shared = spread.reshape(rows, -1)
        self._of_shared = shared.T @ shared
        # Of each kernel: its own curvature, and that which it has with what is shared.
        self._of_kernels = []
        for kernel in self._kernels:
            of_kernel = slopes[kernel.rows]
            own = np.zeros((len(of_kernel), constants + len(kernel.layouts) * len(self._few)))
            own[:, :constants] = of_kernel
            columns = constants + kernel.of_row[:, None] * len(self._few) + np.arange(len(self._few))
            np.put_along_axis(own, columns, of_kernel[:, self._few], axis=1)
            self._of_kernels.append((own.T @ own, own.T @ shared[kernel.rows]))

    def step(self, damping: float, downhill: Floats) -> Floats:
        """The step [keys, constants] towards where the gradient `downhill` [keys, constants] leads."""
        constants = downhill.shape[1]
        left = _damped(self._of_shared, np.repeat(self._priors[self._shared], constants), damping)
        right = downhill[self._shared].ravel()
        eliminated = []
        for kernel, (own, mixed) in zip(self._kernels, self._of_kernels, strict=True):
            priors = np.concatenate([
                np.full(constants, self._priors[kernel.key]), np.repeat(self._priors[kernel.layouts], len(self._few)),
            ])  # fmt: skip
            wanted = np.concatenate([downhill[kernel.key], downhill[np.ix_(kernel.layouts, self._few)].ravel()])
            factor = cholesky(_damped(own, priors, damping), lower=True, check_finite=False)
            half = solve_triangular(factor, np.column_stack([mixed, wanted]), lower=True, check_finite=False)
            left -= half[:, :-1].T @ half[:, :-1]
            right -= half[:, :-1].T @ half[:, -1]
            eliminated.append((factor, half))
        shared = cho_solve(cho_factor(left, check_finite=False), right)
        found = np.zeros_like(downhill)
        found[self._shared] = shared.reshape(-1, constants)
        for kernel, (factor, half) in zip(self._kernels, eliminated, strict=True):
            own = solve_triangular(
                factor, half[:, -1] - half[:, :-1] @ shared, lower=True, trans="T", check_finite=False
            )
            found[kernel.key] = own[:constants]
            found[np.ix_(kernel.layouts, self._few)] = own[constants:].reshape(-1, len(self._few))
        return found


def _damped(curvature: Floats, priors: Floats, damping: float) -> Floats:
    """A copy of the curvature, with priors and damping on its diagonal."""
    found = curvature.copy()
    diagonal = np.einsum("ii->i", found)
    diagonal += priors + damping * (_SHARE * diagonal + 1.0)
    return found
