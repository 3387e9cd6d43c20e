"""`mxpeak scan`: find slow nodes, devices and cores, and those whose results differ."""
