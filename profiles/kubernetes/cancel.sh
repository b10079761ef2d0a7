#!/bin/sh
# Delete Jobs, by name, with their pods.
exec kubectl delete job --wait=false "$@"
