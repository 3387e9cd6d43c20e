"""Dense solves and generated matrices on torch devices."""
