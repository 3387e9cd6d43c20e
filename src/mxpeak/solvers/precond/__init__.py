"""Preconditioners of a sparse matrix over a group of ranks; a serial solve uses a group of one rank."""
