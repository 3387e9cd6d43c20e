"""Who owns what: pure integers, no arrays and no communication."""
