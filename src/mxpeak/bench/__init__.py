"""The benchmarks. The module `run` of each benchmark documents the timed part, the generated data, the verification
and the operation count.
"""
