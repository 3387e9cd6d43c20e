"""Files that hold a matrix, opened so that a rank reads only what it needs: NumPy's, HDF5's and Zarr's."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from mxpeak.errors import UsageError

#: The library that reads a file, by the end of the file's name; NumPy reads all others.
LIBRARIES = {".h5": "h5py", ".hdf5": "h5py", ".zarr": "zarr"}


def opened(path: Path, dataset: str | None) -> Any:
    """An array in a file: what is not asked for is not read."""
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
    """The array of a .npy file."""
    _check_single(path, dataset)
    try:
        return np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{path} is not a readable .npy file: {why}; use numpy.save(path, A) to write one") from None


def _check_single(path: Path, dataset: str | None) -> None:
    if dataset is not None:
        raise UsageError(
            f"dataset={dataset!r} applies only to files with several arrays, but {path} contains one array; "
            "remove dataset"
        )


def _chosen(path: Path, store: Any, dataset: str | None) -> Any:
    """The dataset of that name, or the only one."""
    if hasattr(store, "shape"):  # a Zarr array that is no group
        _check_single(path, dataset)
        return store
    names = sorted(name for name in store if hasattr(store[name], "shape"))
    if dataset is None and len(names) != 1:
        raise UsageError(f"{path} contains {len(names)} datasets ({', '.join(names)}); use dataset= to select one")
    name = names[0] if dataset is None else dataset
    if name not in store or not hasattr(store[name], "shape"):
        raise UsageError(f"{path} has no dataset {name!r}; use one of {', '.join(names)}")
    return store[name]
