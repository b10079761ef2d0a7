#!/bin/sh
# Print running, success or failed: what has become of the Job whose name is given.
answer=$(kubectl get job "$1" -o 'jsonpath={.status.succeeded}/{.status.failed}' 2>&1)
case "$answer" in
1/*) echo success ;;
/[1-9]* | *NotFound*) echo failed ;;
*) echo running ;; # also where the cluster does not answer: the next look will tell
esac
