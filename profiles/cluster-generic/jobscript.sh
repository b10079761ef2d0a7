#!/bin/bash
# properties = {properties}
# A scheduler's SIGUSR1, or Kubernetes' SIGTERM, comes to this shell alone. All processes of the job
# get SIGUSR1 then; ignored here, it is so in what is started below, and only training heeds it.
trap 'passed=yes; trap "" USR1; kill -USR1 0' USR1 TERM
(trap "" USR1; {exec_job}) &
wait $!
status=$?
if [ "$passed" ] && [ $status -gt 128 ]; then # the signal ended the waiting, not the job
  wait $!
  status=$?
fi
exit $status
