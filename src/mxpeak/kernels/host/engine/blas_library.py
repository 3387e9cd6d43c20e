"""Open a BLAS library other than SciPy's, and find its routines by their Fortran names with 32-bit integers."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from mxpeak.configs.run import BLAS_LIBRARIES
from mxpeak.errors import ResourceError

#: The file names of known libraries without their endings, the preferred one first.
FILES = {
    "openblas": ("libopenblas",),
    "mkl": ("libmkl_rt",),
    "blis": ("libblis",),
    "accelerate": ("/System/Library/Frameworks/Accelerate.framework/Accelerate",),
    "armpl": ("libarmpl_lp64", "libarmpl"),
    "nvpl": ("libnvpl_blas_lp64_gomp", "libnvpl_blas_lp64_seq"),
}
assert set(FILES) == set(BLAS_LIBRARIES)
#: The name of a routine in a library: of Accelerate's current interface (it also has the old one), with the underscore
#: of Fortran compilers, without it, and of SciPy's OpenBLAS.
SYMBOLS = ("{}$NEWLAPACK", "{}_", "{}", "scipy_{}_")
#: Names of routines with 64-bit integers, which cannot be called.
WIDE_SYMBOLS = ("{}_64_", "{}64_", "{}_64", "scipy_{}_64_", "{}$NEWLAPACK$ILP64")
#: The routines without which a library is refused, and the routine that shows whether it contains LAPACK.
REQUIRED = tuple(letter + routine for letter in "sd" for routine in ("gemm", "trsm", "gemv", "trsv", "symm"))
LAPACK = "dgetrf"
#: The reason that the system's loader gives for a library of another processor.
OTHER_PROCESSOR = ("wrong ELF class", "incompatible architecture", "Exec format error")


class _SymbolInfo(ctypes.Structure):
    """The result of the loader's function dladdr: the file of an address, and the symbol before it."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("at", ctypes.c_void_p),
    )


class _MklVersion(ctypes.Structure):
    """The result of MKL's function MKL_Get_Version."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("major", "minor", "update")),
        *((name, ctypes.c_char_p) for name in ("status", "build", "processor", "platform")),
    )


class BlasLibrary:
    """A shared library with the routines of BLAS, and of LAPACK if `has_lapack`."""

    def __init__(self, path: str, name: str):
        self.path, self.name = path, name
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise ResourceError(_not_loaded(path, str(error))) from None
        self._form = self._find_form()
        self.path = self._loaded_file() or path
        if missing := [routine for routine in REQUIRED if self.address(routine) is None]:
            raise ResourceError(
                f"{path} lacks {', '.join(missing)}; use a library with all routines of BLAS, or --blas scipy"
            )
        if not self._has_short_integers():
            raise ResourceError(
                f"{path} reads 64-bit integers, and mxpeak passes 32-bit integers; use the LP64 variant of the library"
            )

    def _find_form(self) -> str:
        """Return the form of the names of the routines, such as "{}_"."""
        for form in SYMBOLS:
            if hasattr(self._library, form.format("dgemm")):
                return form
        wide = [form.format("dgemm") for form in WIDE_SYMBOLS if hasattr(self._library, form.format("dgemm"))]
        if wide:
            raise ResourceError(
                f"{self.path} contains {wide[0]}, which reads 64-bit integers; use the LP64 variant of the library"
            )
        names = ", ".join(form.format("dgemm") for form in SYMBOLS)
        raise ResourceError(
            f"{self.path} is not a BLAS library: it contains none of {names}; use the file of a BLAS library, or "
            "--blas scipy"
        )

    def _loaded_file(self) -> str:
        """Return the path of the file that the loader found, or "" if the loader does not report it."""
        info = _SymbolInfo()
        dladdr = ctypes.CDLL(None).dladdr
        dladdr.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        status = dladdr(self.address("dgemm"), ctypes.byref(info))
        return os.fsdecode(info.file) if status and info.file else ""

    @cached_property
    def has_lapack(self) -> bool:
        """Return whether the library also contains LAPACK. Otherwise, LAPACK is SciPy's, with SciPy's BLAS."""
        return self.address(LAPACK) is not None

    @cached_property
    def file_version(self) -> str | None:
        """Return the version in the name of the file, such as 3.11.0 of libblas.so.3.11.0, or None."""
        found = re.search(r"\.so\.(\d+(?:\.\d+)+)$", os.path.realpath(self.path))
        return found[1] if found else None

    @cached_property
    def instructions(self) -> str | None:
        """Return the instructions that MKL uses here, such as "AVX-512 AMX", or None for other libraries."""
        if not hasattr(self._library, "MKL_Get_Version"):
            return None
        version = _MklVersion()
        self._library.MKL_Get_Version(ctypes.byref(version))
        text = (version.processor or b"").decode(errors="replace")
        return " ".join(re.findall(r"\(Intel\(R\) ([\w.-]+)\)", text)) or text or None

    def address(self, routine: str) -> int | None:
        """Return the address of a routine such as dgemm, or None if the library lacks it."""
        try:
            function = getattr(self._library, self._form.format(routine))
        except AttributeError:
            return None
        return ctypes.cast(function, ctypes.c_void_p).value

    def _has_short_integers(self) -> bool:
        """Return whether the library reads 32-bit integers, from the index of the largest of three numbers.

        The 64 bits of n are 3 if only the lower half is read, and negative otherwise. The result is then 0.
        """
        idamax = getattr(self._library, self._form.format("idamax"))
        idamax.restype = ctypes.c_int32
        n, step, x = ctypes.c_int64(3 - (1 << 32)), ctypes.c_int64(1), (ctypes.c_double * 3)(1.0, -5.0, 2.0)
        return bool(idamax(ctypes.byref(n), x, ctypes.byref(step)) == 2)


def open_blas(name: str) -> BlasLibrary:
    """Open a library by its known name or by its path."""
    if name in FILES:
        for path in _candidates(FILES[name]):
            try:
                ctypes.CDLL(path)
            except OSError:
                continue
            return BlasLibrary(path, name)
        files = ", ".join(f"{stem}.{_ending()}" for stem in FILES[name])
        raise ResourceError(f"the system's loader does not find {name} ({files}); install it, or use --blas PATH")
    if not Path(name).is_file():
        raise ResourceError(f"--blas {name}: there is no such file; use the path of a shared library")
    return BlasLibrary(os.path.abspath(name), Path(name).name)


def _candidates(stems: tuple[str, ...]) -> Iterator[str]:
    """Yield the paths and names of a library: first in the folder of Python's packages, then those for the loader."""
    for stem in stems:
        if stem.startswith("/"):
            yield stem
            continue
        for folder in (Path(sys.prefix) / "lib", Path(sys.prefix) / "lib64"):
            yield from map(str, sorted(folder.glob(f"{stem}.{_ending()}*"), key=lambda path: len(path.name)))
        yield f"{stem}.{_ending()}"
        yield from (f"{stem}.so.{version}" for version in range(6) if _ending() == "so")


def _ending() -> str:
    return "dylib" if sys.platform == "darwin" else "so"


def _not_loaded(path: str, reason: str) -> str:
    """Return the message for a library that cannot be loaded."""
    remedy = "use a library for this processor, or --blas scipy"
    if any(text in reason for text in OTHER_PROCESSOR):
        return f"{path} is not a library for this processor ({os.uname().machine}): {reason}; {remedy}"
    if _is_elf_of_other_processor(path):  # Linux reports that there is no such file
        return f"{path} is not a library for this processor ({os.uname().machine}); {remedy}"
    return f"{path} cannot be loaded: {reason}; use a shared library with all its dependencies, or --blas scipy"


def _is_elf_of_other_processor(path: str) -> bool:
    """Return whether a file and this Python are ELF files for different processors, by the field e_machine."""
    headers = []
    for name in (path, sys.executable):
        try:
            with open(name, "rb") as file:
                headers.append(file.read(20))
        except OSError:
            return False
    return all(header.startswith(b"\x7fELF") for header in headers) and headers[0][18:] != headers[1][18:]
