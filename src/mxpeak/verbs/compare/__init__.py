"""`mxpeak compare`: compare two results, or two commands by interleaved runs."""
