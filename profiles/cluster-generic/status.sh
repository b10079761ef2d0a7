#!/bin/sh
# Print running, success or failed: what has become of the Slurm job whose id is given.
answer=$(scontrol -o show job "$1" 2>&1)
case "$answer" in
*"Invalid job id"*) # Slurm has forgotten it; its database may know
  state=$(sacct -X -n -P -o State -j "$1" 2>/dev/null | tail -1)
  ;;
*JobState=*)
  state=${answer#*JobState=}
  ;;
*) # the controller does not answer: the next look will tell
  state=RUNNING
  ;;
esac
case "$state" in
COMPLETED*) echo success ;;
PENDING* | CONFIGURING* | RUNNING* | COMPLETING* | SUSPENDED* | STOPPED* | REQUEUE* | RESIZING* | \
  SIGNALING* | STAGE_OUT* | SPECIAL_EXIT*) echo running ;;
*) echo failed ;; # also what nobody knows of: it is tried again, which costs little if it was done
esac
