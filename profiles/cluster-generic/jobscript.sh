#!/bin/bash
# properties = {properties}
# A scheduler's SIGUSR1, or Kubernetes' SIGTERM, comes to this shell alone. All processes of the job
# get SIGUSR1 then; ignored here, it is so in what is started below, and only training heeds it.
trap 'trap "" USR1; kill -USR1 0' USR1 TERM
(trap "" USR1; {exec_job}) &
job=$!
wait $job
status=$?
while [ $status -gt 128 ] && kill -0 $job 2>/dev/null; do # a signal ended the waiting, not the job
  wait $job
  status=$?
done
exit $status
