"""The JSON Schema of the result file, and the check of recorded files against it."""
