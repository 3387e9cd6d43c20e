"""Counts of flops and bytes, simulations of runs, and readers of facts, energy and health of a machine."""
