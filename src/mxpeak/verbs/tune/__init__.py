"""`mxpeak tune`: find and store the fastest settings on this machine."""
