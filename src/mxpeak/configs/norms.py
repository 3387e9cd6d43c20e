"""The norms, structures and types that matrices have, by all of their names."""

from __future__ import annotations

#: Norms, also by the names that NumPy and LAPACK give them.
NORM_KINDS = ("max", "one", "inf", "fro")
KIND_NAMES = {**{kind: kind for kind in (*NORM_KINDS, "all")}, "1": "one", "infinity": "inf", "frobenius": "fro"}


#: Structures of matrices whose norms are taken, and which options each takes (what they are: `layout.structure`).
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


#: Types of entries, by NumPy's names, with the format of their real part; and the other names of each.
DTYPES = {
    "float64": "fp64",
    "float32": "fp32",
    "complex128": "fp64",
    "complex64": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
}


DTYPE_NAMES = {
    **{dtype: dtype for dtype in DTYPES},
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
