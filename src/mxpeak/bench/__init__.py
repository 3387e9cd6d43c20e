"""The benchmarks: each states its own rules in one screen (what is timed, generated, verified, counted)."""
