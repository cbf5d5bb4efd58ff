#!/usr/bin/env bash
# Runs the learner, and beside it services, submission and the submission of the prompts: learner.sh CONFIG.
#
# Redis and the store are external. The script ends when the learner does, with its exit code, and ends the others.
# SIGTERM, SIGINT and SIGHUP are passed on to the learner, which then finishes and checkpoints the update under way.
set -uo pipefail
config=${1:?"learner.sh CONFIG: name the run's TOML file"}
export ECHO_QUEUE_CONFIG=$config
beside=()
echo-queue services "$config" &
beside+=($!)
celery -A echo_queue.submission worker &
beside+=($!)
echo-queue submit "$config" --within-run &
beside+=($!)
echo-queue learner "$config" &
learner=$!
trap 'kill -TERM "$learner"' TERM INT HUP
while kill -0 "$learner" 2> /dev/null; do # a signal ends `wait` before the learner ends
  wait "$learner" || true
done
code=0
wait "$learner" || code=$?
kill -TERM "${beside[@]}" 2> /dev/null
wait "${beside[@]}"
exit "$code"
