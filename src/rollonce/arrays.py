"""Numbers as people hold them, as float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def as_float64_array(values: Any) -> NDArray[np.float64]:
    """Lists, arrays and tensors as a new float64 array: a tensor of any dtype, on any device, with a gradient or
    without; also a list of tensors. None becomes NaN.

    Raises:
        TypeError, ValueError: as numpy, for what is not numbers.
    """
    if hasattr(values, "detach"):  # a tensor of torch, which need not be installed
        return np.array(values.detach().cpu().double().numpy())
    if isinstance(values, list | tuple) and any(hasattr(value, "detach") for value in values):
        return np.stack([as_float64_array(value) for value in values])
    return np.array(values, dtype=np.float64)
