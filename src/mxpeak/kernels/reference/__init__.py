"""The oracle: every kernel as its formula, in plain NumPy; small sizes, one thread."""
