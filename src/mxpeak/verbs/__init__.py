"""The commands that are not benchmarks, one directory each."""
