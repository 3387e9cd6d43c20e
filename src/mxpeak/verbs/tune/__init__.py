"""`mxpeak tune`: find and store the fastest settings of this machine."""
