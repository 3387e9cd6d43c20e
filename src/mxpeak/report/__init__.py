"""Reports on results: text for users, text for scripts, and one self-contained HTML page."""
