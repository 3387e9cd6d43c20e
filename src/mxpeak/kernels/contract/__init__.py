"""What every backend provides, by subject: signature, what is overwritten, error bound, flops.

Matrices are row-major blocks of a backend's own arrays, cut by slicing (`A[i0:i1, j0:j1]` is a view): pivoting moves
rows, and a row-major row is one contiguous piece.  Panels are column-major: the factorization goes down their columns.
Vectors are contiguous.  A precision is that in which an array is stored, fp64 unless said; an operand is what products
take: stored in its precision where products of it exist, else rounded to it and stored in a wider one.
Solvers hold arrays, cut them and hand them back, and know nothing else about them: so the same solver runs on NumPy
arrays and on a device's tensors.  On a device operations are begun in order and go on in the background; one that
returns Python numbers waits for what these depend on.  u is the unit roundoff of the type; bounds are to first order
and normwise.
"""

from typing import Any

Matrix = Any
Vector = Any
Indices = Any

__all__ = ["Indices", "Matrix", "Vector"]
