"""`mxpeak scan`: find slow nodes, devices and cores, and ranks whose results differ."""
