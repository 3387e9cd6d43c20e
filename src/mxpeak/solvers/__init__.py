"""Numerical algorithms in the form of the cited papers, independent of backends, devices and MPI."""
