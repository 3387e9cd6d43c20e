"""Observers of the spans of a run: progress, events, metrics, guard and watchdog. Observers never write to stdout."""
