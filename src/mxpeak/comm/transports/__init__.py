"""Communicators, one module per transport."""
