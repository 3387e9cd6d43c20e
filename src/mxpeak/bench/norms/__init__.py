"""Matrix norms, limited by the memory bandwidth."""
