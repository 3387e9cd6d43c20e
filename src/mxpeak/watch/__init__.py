"""Observe the spans of a run: progress, events, metrics and the watchdog. The observers never write to stdout."""
