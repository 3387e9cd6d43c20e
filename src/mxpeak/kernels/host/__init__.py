"""The fast CPU: tuned BLAS through pointers with leading dimensions, Numba where BLAS has nothing."""
