#!/usr/bin/env bash
# Runs a worker for each GPU of this machine, or one where there is none: workers.sh CONFIG.
#
# - SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 are passed on to all workers (docs/operations.md, spot notices).
# - It ends when all workers have ended: with 0, or with the exit code of one that failed.
# - CUDA_VISIBLE_DEVICES says which GPUs are this job's; without it, all of the machine are.
set -uo pipefail
config=${1:?"workers.sh CONFIG: name the run's TOML file"}
if [[ -v CUDA_VISIBLE_DEVICES ]]; then
  IFS=, read -ra gpus <<< "$CUDA_VISIBLE_DEVICES"
elif command -v nvidia-smi > /dev/null; then
  mapfile -t gpus < <(nvidia-smi --query-gpu=index --format=csv,noheader)
else
  gpus=()
fi
workers=()
# shellcheck disable=SC2329 # the traps call it
pass_on() {
  local worker
  for worker in "${workers[@]}"; do
    kill "-$1" "$worker" 2> /dev/null || true
  done
}
for signal in TERM INT HUP USR1 USR2; do
  # shellcheck disable=SC2064 # the signal is known now
  trap "pass_on $signal" "$signal"
done
if ((${#gpus[@]} == 0)); then
  echo-queue worker "$config" &
  workers+=($!)
fi
for gpu in "${gpus[@]}"; do
  CUDA_VISIBLE_DEVICES=$gpu echo-queue worker "$config" &
  workers+=($!)
done
worst=0
for worker in "${workers[@]}"; do
  while kill -0 "$worker" 2> /dev/null; do # a signal ends `wait` before the worker ends
    wait "$worker" || true
  done
  code=0
  wait "$worker" || code=$?
  ((code == 0)) || worst=$code
done
exit "$worst"
