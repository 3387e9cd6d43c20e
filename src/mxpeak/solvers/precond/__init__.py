"""Preconditioners of a sparse matrix over a group of ranks; a serial solve is a group of one rank."""
