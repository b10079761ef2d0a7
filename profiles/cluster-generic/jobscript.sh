#!/bin/bash
# properties = {properties}
# A scheduler's SIGUSR1, or SIGTERM, reaches only this shell. It then sends SIGUSR1 to all processes of
# the job. They inherit from here that SIGUSR1 is ignored, and only training handles it.
trap 'trap "" USR1; kill -USR1 0' USR1 TERM
(trap "" USR1; {exec_job}) &
job=$!
wait $job
status=$?
while [ $status -gt 128 ] && kill -0 $job 2>/dev/null; do # a signal interrupted wait; the job still runs
  wait $job
  status=$?
done
exit $status
