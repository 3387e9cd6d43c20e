"""The command line: flags in, text and files and an exit code out."""
