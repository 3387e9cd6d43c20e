"""Distributed matrices and vectors, as one rank sees them."""
