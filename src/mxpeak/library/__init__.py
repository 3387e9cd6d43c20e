"""The Python interface: solvers and norms for the user's matrices, and the benchmarks as functions."""
