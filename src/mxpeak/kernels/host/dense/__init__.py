"""Dense solves and generated matrices on the host."""
