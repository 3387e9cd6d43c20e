"""The speed limits of a machine: the rates of matrix products and of memory."""
