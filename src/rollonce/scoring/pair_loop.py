"""The compiled loop of `rollonce.scoring.pair_sums`, in a file of its own because importing numba and loading what it
compiled take a third of a second, which small tables do without."""

from __future__ import annotations

import numpy as np
from numba import njit


# Sums may be reordered (that is what lets them run in vector registers); infinities and NaNs keep their meaning.
@njit(cache=True, fastmath={"reassoc", "contract", "nsz"})
def sums_by_loop(
    table: np.ndarray,
    columns_KM: np.ndarray,
    n_rows: int,
    key_N: np.ndarray,
    factor_M: np.ndarray,
    mean_N: np.ndarray,
    v_N: np.ndarray,
) -> np.ndarray:
    """``sum_j w``, ``sum_j w m_j``, ``sum_j w^2 v_j`` and ``sum_j f_j w v_j`` over what each row may see (K, B, 4),
    with ``w`` the factor f of the column times the weight of the pair in an N x N table."""
    n_batches, m = columns_KM.shape
    out = np.empty((n_batches, n_rows, 4))
    for k in range(n_batches):
        column = columns_KM[k]
        for i in range(n_rows):
            a = column[i]
            row = table[a]
            total, first, second, mixed = 0.0, 0.0, 0.0, 0.0
            for j in range(m):
                c = column[j]
                hidden = c == a if j < n_rows else key_N[c] == key_N[a]
                x = 0.0 if hidden else factor_M[j] * row[c]
                total += x
                first += x * mean_N[c]
                x_v = x * v_N[c]
                second += x * x_v
                mixed += factor_M[j] * x_v
            out[k, i, 0], out[k, i, 1], out[k, i, 2], out[k, i, 3] = total, first, second, mixed
    return out
