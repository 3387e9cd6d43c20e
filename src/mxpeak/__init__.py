"""mxpeak: the supercomputer benchmarks and their mixed-precision solvers, from a laptop to thousands of GPUs."""

__version__ = "0.1.0"
