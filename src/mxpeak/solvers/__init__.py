"""Numerical algorithms in the form of the cited papers, independent of backends, devices and message passing
libraries.
"""
