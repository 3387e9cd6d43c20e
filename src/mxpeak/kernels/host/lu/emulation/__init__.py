"""Emulated fp64 products: by SGEMM on any processor, and by the tiles of a matrix engine for INT8 numbers."""
