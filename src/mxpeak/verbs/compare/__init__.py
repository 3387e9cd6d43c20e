"""`mxpeak compare`: compare two results, or two commands that run alternately."""
