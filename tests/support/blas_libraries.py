"""Compile BLAS libraries in C, also with errors."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

COMPILER = shutil.which("cc")
#: BLAS of integers in C, with errors that a macro selects. Only the calls of the checks are implemented.
SOURCE = r"""
typedef INTEGER T;
T NAME(idamax)(const T *n, const double *x, const T *step)
{
    T best = 0;
    for (T i = 0; i < *n; i++)
        if (!best || __builtin_fabs(x[i]) > __builtin_fabs(x[best - 1])) best = i + 1;
    return best;
}
#define GEMM(name, real)                                                                                     \
    void NAME(name)(const char *ta, const char *tb, const T *m, const T *n, const T *k, const real *alpha,   \
                    const real *a, const T *lda, const real *b, const T *ldb, const real *beta, real *c,     \
                    const T *ldc)                                                                            \
    {                                                                                                        \
        for (T j = 0; j < *n; j++)                                                                           \
            for (T i = 0; i < *m; i++) {                                                                     \
                real sum = ERROR;                                                                            \
                for (T p = 0; p < *k; p++)                                                                   \
                    sum += (*ta == 'N' ? a[i + p * *lda] : a[p + i * *lda]) *                                \
                           (*tb == 'N' ? b[p + j * *ldb] : b[j + p * *ldb]);                                 \
                c[i + j * *ldc] = *alpha * sum + *beta * c[i + j * *ldc];                                    \
            }                                                                                                \
    }
GEMM(dgemm, double)
GEMM(sgemm, float)
/* X L^T = B with the unit lower triangle L: the only case that is used. */
#define TRSM(name, real)                                                                                     \
    void NAME(name)(const char *side, const char *uplo, const char *ta, const char *diag, const T *m,        \
                    const T *n, const real *alpha, const real *a, const T *lda, real *b, const T *ldb)       \
    {                                                                                                        \
        for (T j = 0; j < *n; j++)                                                                           \
            for (T p = 0; p < j; p++)                                                                        \
                for (T i = 0; i < *m; i++) b[i + j * *ldb] -= b[i + p * *ldb] * a[j + p * *lda];             \
    }
TRSM(dtrsm, double)
TRSM(strsm, float)
#ifndef INCOMPLETE
void NAME(dgemv)(void) {}
void NAME(sgemv)(void) {}
void NAME(dtrsv)(void) {}
void NAME(strsv)(void) {}
void NAME(dsymm)(void) {}
void NAME(ssymm)(void) {}
#endif
#ifdef PROCESSOR
void MKL_Get_Version(struct { int major, minor, update; const char *status, *build, *processor, *platform; } *version)
{
    version->processor = PROCESSOR;
}
#endif
"""


def library(folder: Path, name: str = "{}_", integer: str = "int", error: str = "0", *options: str) -> Path:
    """Compile a BLAS library in C."""
    if COMPILER is None:
        pytest.skip("no C compiler")
    source, file = folder / "blas.c", folder / "libown.so"
    source.write_text(SOURCE)
    before, _, after = name.partition("{}")
    paste = f"-DNAME(f)=f##{after}" if not before else f"-DNAME(f)={before}##f##{after}"
    flags = [f"-DINTEGER={integer}", paste, f"-DERROR={error}", *options]
    subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", *flags, "-o", file, source], check=True)
    return file
