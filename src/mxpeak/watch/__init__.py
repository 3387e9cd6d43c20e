"""Observers of spans: progress, events, metrics and the watchdog. They never write to stdout."""
