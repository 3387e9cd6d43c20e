"""Matrix norms at the rate of memory."""
