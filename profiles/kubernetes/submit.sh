#!/bin/sh
# Create a Job that runs a script, and print its name: submit.sh RULE THREADS MB MINUTES GPUS SCRIPT
# Where it runs out of time or its node is drained, training has 180 s to finish its round.
set -eu
name="fedloom-$(echo "$1" | tr _ -)-"
gpus=""
[ "$5" -eq 0 ] || gpus=", nvidia.com/gpu: $5"
kubectl create -o 'jsonpath={.metadata.name}{"\n"}' -f - <<END
apiVersion: batch/v1
kind: Job
metadata: {generateName: $name}
spec:
  backoffLimit: 0
  template:
    spec:
      activeDeadlineSeconds: $(($4 * 60)) # of the pod: time in the queue does not count
      restartPolicy: Never
      terminationGracePeriodSeconds: 180
      containers:
        - name: job
          image: "$FEDLOOM_IMAGE"
          command: ["/bin/bash", "$6"]
          workingDir: "$PWD"
          resources:
            requests: {cpu: $2, memory: $3M}
            limits: {memory: $3M$gpus}
          volumeMounts: [{name: checkout, mountPath: "$PWD"}]
      volumes:
        - name: checkout
          persistentVolumeClaim: {claimName: "$FEDLOOM_CLAIM"}
END
