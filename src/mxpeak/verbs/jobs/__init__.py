"""`mxpeak slurm`: write job scripts."""
