"""`mxpeak job`: write job scripts for Slurm, PBS and Flux, and manifests for Kubernetes."""
