"""`mxpeak plan` and `mxpeak simulate`: predict runs on machines that you describe."""
