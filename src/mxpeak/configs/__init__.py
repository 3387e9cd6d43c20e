"""What benchmarks are told, as far as more than one of them is told it; each one's own stands in its folder."""
