"""What a user calls from Python: solvers and norms for matrices of their own, and the benchmarks as functions."""
