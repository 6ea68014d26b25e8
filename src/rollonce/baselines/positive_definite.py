"""Inverses of positive definite matrices, by halves and their Schur complement, in numpy alone.

Nearly all of it is matrix products. Source: Golub & Van Loan 2013, section 3.2.11 (block elimination).
"""

from __future__ import annotations

import numpy as np

from rollonce.rollouts import FloatArray

_ELIMINATED_UP_TO = 8
_FEW, _SMALL = 16, 128
_BY_HALVES_UP_TO = 1e3


def inverse_and_logdet(c_nn: FloatArray) -> tuple[FloatArray, float]:
    """Inverse and log determinant of a positive definite matrix: at 256 rows 2.5 times as fast as numpy's ``inv`` and
    ``cholesky`` (numpy has no inverse from a Cholesky factor).

    Raises:
        numpy.linalg.LinAlgError: it is not positive definite.
    """
    n = len(c_nn)
    if n <= 64:
        return np.asarray(np.linalg.inv(c_nn), np.float64), 2 * float(np.log(np.diag(np.linalg.cholesky(c_nn))).sum())
    m = n // 2
    upper, logdet = inverse_and_logdet(c_nn[:m, :m])
    across = upper @ c_nn[:m, m:]
    lower, logdet_rest = inverse_and_logdet(c_nn[m:, m:] - c_nn[m:, :m] @ across)
    corner = -across @ lower
    out = np.empty_like(c_nn)
    out[:m, :m], out[:m, m:] = upper - corner @ across.T, corner
    out[m:, :m], out[m:, m:] = corner.T, lower
    return out, logdet + logdet_rest


def inverses_of_stack(c_KMM: FloatArray, condition: float) -> FloatArray:
    """Inverses of K positive definite matrices (K, M, M): of many small ones, some hundred of which fit the processor's
    cache, twice as fast as numpy's ``inv``.

    Args:
        c_KMM: The matrices.
        condition: A bound on their condition numbers. By halves errors grow with its square, so that above a thousand
            it is numpy's ``inv`` that is used, as it is for large matrices and for few.
    """
    if condition > _BY_HALVES_UP_TO or len(c_KMM) < _FEW or c_KMM.shape[-1] > _SMALL:
        return np.asarray(np.linalg.inv(c_KMM), np.float64)
    return _inverses_by_halves(c_KMM)


def _inverses_by_halves(c_KMM: FloatArray) -> FloatArray:
    m = c_KMM.shape[-1] // 2
    if 2 * m <= _ELIMINATED_UP_TO:
        return _inverses_by_elimination(c_KMM)
    upper = _inverses_by_halves(c_KMM[:, :m, :m])
    across = upper @ c_KMM[:, :m, m:]
    lower = _inverses_by_halves(c_KMM[:, m:, m:] - c_KMM[:, m:, :m] @ across)
    corner = -(across @ lower)
    out = np.empty_like(c_KMM)
    out[:, :m, :m], out[:, :m, m:] = upper - corner @ across.swapaxes(1, 2), corner
    out[:, m:, :m], out[:, m:, m:] = corner.swapaxes(1, 2), lower
    return out


def _inverses_by_elimination(c_KMM: FloatArray) -> FloatArray:
    """By Gauss and Jordan, a pivot of all K matrices at a time."""
    a_MMK = np.array(np.moveaxis(c_KMM, 0, 2), order="C")  # a copy always
    for i in range(len(a_MMK)):
        factor_K = 1 / a_MMK[i, i]
        row_MK, column_MK = a_MMK[i] * factor_K, a_MMK[:, i].copy()
        a_MMK -= column_MK[:, None] * row_MK
        a_MMK[i], a_MMK[:, i] = row_MK, -column_MK * factor_K
        a_MMK[i, i] = factor_K
    return np.moveaxis(a_MMK, 2, 0)


__all__ = ["inverse_and_logdet", "inverses_of_stack"]
