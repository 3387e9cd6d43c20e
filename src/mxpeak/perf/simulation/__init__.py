"""Predict run times by simulating runs on machines that are described by rates and latencies."""
