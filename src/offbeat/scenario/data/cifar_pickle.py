"""Pickles that others published, read without running anything: the only file that touches the format."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from offbeat.core.errors import DataError

# how an array says it is made; its module's name changed between numpy versions
_RECONSTRUCT = np.zeros(0).__reduce__()[0]
_HARMLESS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _Restricted(pickle.Unpickler):
    """A pickle can name any function and have it called: here only what makes an array is known."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):  # how Python 3 writes bytes for Python 2
            return _latin
        if (module, name) not in _HARMLESS:
            raise DataError(f"it names {module}.{name}, which no table of numbers needs: refused")
        return _HARMLESS[module, name]


def _latin(text: str, encoding: str) -> bytes:
    return text.encode("latin1")


def read_pickle(path: Path) -> Any:
    try:
        with open(path, "rb") as file:
            return _Restricted(file, encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from None
    except Exception:  # an unpickler raises whatever the bytes lead it to
        raise DataError(f"{path} is no whole pickle: it is cut short or damaged") from None
