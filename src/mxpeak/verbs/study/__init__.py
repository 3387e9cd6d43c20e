"""`mxpeak study`: reproduce the experiments behind the HPL-MxP rules."""
