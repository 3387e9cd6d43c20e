"""Tiles of products by the matrix instructions of 64-bit Arm."""
