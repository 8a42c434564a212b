"""Whatever NumPy reads as numbers, as an array of one dtype. Pure; knows nothing of requests."""

import reprlib
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from worldstream.errors import InvalidInputError

_Number = TypeVar("_Number", bound=np.floating[Any])


def as_numbers(name: str, values: npt.ArrayLike, dtype: type[_Number]) -> npt.NDArray[_Number]:
    """Copy the values into an array.

    Raises:
        InvalidInputError: naming the input; what came is no array of numbers, or one of them is too large.
    """
    try:
        with np.errstate(over="raise"):
            return np.array(values, dtype=dtype)
    except (OverflowError, FloatingPointError) as error:
        raise InvalidInputError(f"{name}: wanted an array of numbers, got one that is too large") from error
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"{name}: wanted an array of numbers, got {reprlib.repr(values)}") from error
