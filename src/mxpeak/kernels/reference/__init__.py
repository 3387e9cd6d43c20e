"""Reference kernels for tests: every kernel as its formula in plain NumPy, for small sizes and one thread."""
