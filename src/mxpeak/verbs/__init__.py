"""Commands that are not benchmarks, one package per command or pair of commands."""
