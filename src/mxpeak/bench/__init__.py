"""The benchmarks. Each benchmark states in one short module what it times, generates, verifies and counts."""
