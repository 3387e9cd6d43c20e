"""The commands that are not benchmarks, in one directory each."""
