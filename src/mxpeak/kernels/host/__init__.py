"""Host kernels: tuned BLAS, called through pointers with leading dimensions, and Numba for all other operations."""
