#!/bin/sh
# Slurm epilog: scan this node after a job, and drain it if it is slow or computes wrong results.
#   slurm.conf: Epilog=/etc/slurm/mxpeak_epilog.sh
# Use the script on partitions with exclusive nodes, because other jobs on the node would disturb the measurement.
set -u
baseline=/etc/mxpeak/baseline.json # mxpeak baseline from SCAN --out FILE
seconds=120                        # less than PrologEpilogTimeout in slurm.conf

folder=$(mktemp -d) || exit 0
trap 'rm -rf "$folder"' EXIT
timeout "$seconds" mxpeak scan --quiet --profile quick --against "$baseline" --out "$folder/scan" --write-drain slurm
code=$?
case $code in
0) ;;
3) sh "$folder/scan/drain.sh" ;;
*) logger -t mxpeak "the scan of the epilog ended with exit code $code" ;;
esac
exit 0
