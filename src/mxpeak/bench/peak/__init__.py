"""The speed limits of a machine: matrix products and memory."""
