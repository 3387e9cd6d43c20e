"""Compute norms on the host: passes over tiles, exact sums, and reference sums for checks."""
