"""Distributed matrices: a layout and this rank's part."""
