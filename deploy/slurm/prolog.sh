#!/bin/bash
# Prolog of slurmd (as root): stops the farm's worker, a systemd unit, before a job gets this node. Pair it with epilog.sh.
# It calls no command of Slurm, and always ends with 0: otherwise Slurm would drain the node.
jobs=${GEMM_FARM_JOBS:-/run/gemm-farm-jobs}
mkdir -p -m 0700 "$jobs" || exit 0
exec 9> "$jobs.lock" && flock 9 || exit 0
: > "$jobs/${SLURM_JOB_ID:-0}"
if ! systemctl stop gemm-farm-worker.service; then
  logger -t gemm-farm "gemm-farm-worker did not stop before job ${SLURM_JOB_ID:-0}: see systemctl status gemm-farm-worker" || true
fi
exit 0
