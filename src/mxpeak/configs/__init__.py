"""Options shared by several benchmarks. Benchmark-specific options are in `bench/<name>/config.py`."""
