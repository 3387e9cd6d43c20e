"""What is printed and written of results: text for people and for scripts, and one self-contained HTML page."""
