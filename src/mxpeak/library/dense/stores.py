"""Open NumPy, HDF5 and Zarr files so that a rank reads only the blocks that it needs."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from mxpeak.errors import UsageError

#: The library that reads a file, by its suffix; NumPy reads all others.
LIBRARIES = {".h5": "h5py", ".hdf5": "h5py", ".zarr": "zarr"}


def opened(path: Path, dataset: str | None) -> Any:
    """Open a file and return an array object that reads only the requested entries."""
    library = LIBRARIES.get(path.suffix.lower())
    if library is None:
        return _mapped(path, dataset)
    if not path.exists():
        raise UsageError(f"{path}: No such file or directory; use a path that all ranks can read")
    try:
        module = import_module(library)
    except ImportError:
        raise UsageError(
            f"mxpeak needs {library} to read {path}, but {library} is not installed; run pip install {library}"
        ) from None
    try:
        store = module.File(path, "r") if library == "h5py" else module.open(str(path), mode="r")
    except (OSError, ValueError, RuntimeError, LookupError) as error:
        raise UsageError(f"{library} cannot open {path}: {error}; use a file that {library} can open") from None
    return _chosen(path, store, dataset)


def _mapped(path: Path, dataset: str | None) -> Any:
    """Return the memory-mapped array of a .npy file; raise an error if a dataset is named."""
    _check_single(path, dataset)
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"{path} is not a readable .npy file: {reason}; use numpy.save(path, A) to write one"
        ) from None


def _check_single(path: Path, dataset: str | None) -> None:
    """Raise a UsageError if a dataset is named although the file contains only one array."""
    if dataset is not None:
        raise UsageError(
            f"dataset={dataset!r} applies only to files with several arrays, but {path} contains one array; "
            "remove dataset"
        )


def _chosen(path: Path, store: Any, dataset: str | None) -> Any:
    """Return the dataset with this name, or the only dataset of the store."""
    if hasattr(store, "shape"):  # a Zarr array outside a group
        _check_single(path, dataset)
        return store
    names = sorted(name for name in store if hasattr(store[name], "shape"))
    if dataset is None and len(names) != 1:
        raise UsageError(f"{path} contains {len(names)} datasets ({', '.join(names)}); use dataset= to select one")
    name = names[0] if dataset is None else dataset
    if name not in store or not hasattr(store[name], "shape"):
        raise UsageError(f"{path} has no dataset {name!r}; use one of {', '.join(names)}")
    return store[name]
