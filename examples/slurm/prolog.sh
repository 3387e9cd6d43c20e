#!/bin/sh
# Slurm prolog: compare this node with the baseline of its model before a job starts.
#   slurm.conf: Prolog=/etc/slurm/mxpeak_prolog.sh
# If the node is slow or computes wrong results, the script drains it and fails. Slurm then requeues the job.
# All other errors, such as a missing baseline, only go to the system log, so that they do not stop jobs.
set -u
baseline=/etc/mxpeak/baseline.json # mxpeak baseline from SCAN --out FILE
seconds=120                        # less than PrologEpilogTimeout in slurm.conf

folder=$(mktemp -d) || exit 0
trap 'rm -rf "$folder"' EXIT
timeout "$seconds" mxpeak scan --quiet --profile quick --against "$baseline" --out "$folder/scan" --write-drain slurm
code=$?
case $code in
0) ;;
3)
    sh "$folder/scan/drain.sh"
    # an undecided scan drains no node
    if grep -q '^scontrol' "$folder/scan/drain.sh"; then exit 1; fi
    ;;
*) logger -t mxpeak "the scan of the prolog ended with exit code $code" ;;
esac
exit 0
