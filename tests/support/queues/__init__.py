"""Simulate queues of a GPU: compute every operation immediately, and record the order of the work."""
