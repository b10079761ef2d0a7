#!/bin/sh
# Print the state of the Slurm job with the given id: running, success or failed.
answer=$(scontrol -o show job "$1" 2>&1)
case "$answer" in
*"Invalid job id"*) # Slurm no longer knows the job; its database may
  state=$(sacct -X -n -P -o State -j "$1" 2>/dev/null | tail -1)
  ;;
*JobState=*)
  state=${answer#*JobState=}
  ;;
*) # the controller does not answer; the next check will tell
  state=RUNNING
  ;;
esac
case "$state" in
COMPLETED*) echo success ;;
PENDING* | CONFIGURING* | RUNNING* | COMPLETING* | SUSPENDED* | STOPPED* | REQUEUE* | RESIZING* | \
  SIGNALING* | STAGE_OUT* | SPECIAL_EXIT*) echo running ;;
*) echo failed ;; # unknown jobs too: retrying a finished job costs little
esac
