"""NumPy's files of one array. Knows nothing of what an array means."""

from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt


def open_npy(path: str | PathLike[str]) -> npt.NDArray[Any]:
    """The array of a .npy file, read-only; no more is read than is looked at.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is no such file, or not whole, or holds Python objects.
    """
    # Not np.load: that also opens archives, and fails by other errors on what only looks like one.
    try:
        array: npt.NDArray[Any] = np.lib.format.open_memmap(path, mode="r")  # type: ignore[no-untyped-call]
    except OSError:
        raise
    except Exception as error:  # NumPy's reader of headers fails in its own ways
        raise ValueError(f"no .npy file: {error}") from error
    return array
