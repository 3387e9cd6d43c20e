"""The norms of a matrix, at the rate of memory."""
