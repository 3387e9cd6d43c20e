"""The command line: parse flags, run a verb, print text, write files and return an exit code."""
