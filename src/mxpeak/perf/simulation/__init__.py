"""Predictions of run times from a description of a machine."""
