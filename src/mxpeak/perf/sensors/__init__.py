"""Sensors of processors, GPUs and nodes: one interface, and one file per source."""
