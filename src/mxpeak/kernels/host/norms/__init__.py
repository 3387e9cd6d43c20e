"""Norms on the host: passes over tiles, exact sums, and the oracle that checks them."""
