"""The kinds of norms, the structures of matrices and the types of entries, with all their names."""

from __future__ import annotations

from typing import NamedTuple


class NormKind(NamedTuple):
    """A kind of norm, such as max, one, inf or fro.

    terms       dimensions of the matrix whose product is the number of added terms
    aliases     other names, as in NumPy and LAPACK
    """

    terms: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()


#: The kinds of norms by name.
KINDS = {
    "max": NormKind(),
    "one": NormKind(("m",), ("1",)),
    "inf": NormKind(("n",), ("infinity",)),
    "fro": NormKind(("m", "n"), ("frobenius",)),
}
#: The kinds of norms by all of their names.
KIND_NAMES = {name: name for name in KINDS} | {alias: name for name, kind in KINDS.items() for alias in kind.aliases}

#: The structures of matrices, and the options that each structure accepts (see `layout.structure`).
STRUCTURES: dict[str, tuple[str, ...]] = {
    "general": (),
    "trapezoid": ("uplo", "diag"),
    "triangular": ("uplo", "diag"),
    "symmetric": ("uplo",),
    "hermitian": ("uplo",),
    "band": ("kl", "ku"),
    "hermitian-band": ("uplo", "kl"),
    "hessenberg": (),
}
#: The options that apply only to some structures.
OF_STRUCTURES = ("uplo", "diag", "kl", "ku")
UPLOS = ("lower", "upper")
DIAGS = ("nonunit", "unit")

#: The types of entries: NumPy's names with the format of the real part, and then all names of the types.
DTYPES = {
    "float64": "fp64",
    "float32": "fp32",
    "complex128": "fp64",
    "complex64": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
}
DTYPE_NAMES = {name: name for name in DTYPES} | {
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "c128": "complex128",
    "c64": "complex64",
    "d": "float64",
    "s": "float32",
    "z": "complex128",
    "c": "complex64",
}

LAYOUTS = ("C", "F", "tiles")

#: The scopes of a norm: one number for the matrix, or one for each column or row.
SCOPES = ("matrix", "columns", "rows")
#: The operations of BLAS's TRANS: A, its transpose, and its conjugate transpose.
TRANS = ("n", "t", "c")
#: The kinds of norms of a vector. Its infinity norm is its maximum.
VECTOR_KINDS = ("max", "one", "fro")
