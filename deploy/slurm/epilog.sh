#!/bin/bash
# Epilog of slurmd (as root): starts the farm's worker again when the last job has left this node. Pair it with prolog.sh.
jobs=${GEMM_FARM_JOBS:-/run/gemm-farm-jobs}
[ -d "$jobs" ] || exit 0
exec 9> "$jobs.lock" && flock 9 || exit 0
rm -f "$jobs/${SLURM_JOB_ID:-0}"
# Only a unit that is enabled: an operator who disabled it wants no worker here.
if [ -z "$(ls -A "$jobs")" ] && systemctl --quiet is-enabled gemm-farm-worker.service; then
  systemctl --no-block start gemm-farm-worker.service || logger -t gemm-farm "gemm-farm-worker did not start" || true
fi
exit 0
