"""Write results as text for people, text for scripts, and one self-contained HTML page."""
