#!/bin/sh
# What a container runs: checks what only its runner can give, then becomes the launcher, which gets the signals.
set -eu

home=$(dirname "$0")
wanted_mib=${WORLDSTREAM_SHM_MIB:-1024}
wanted_stack_kib=262144 # an HTTP JSON body is parsed on the stack

case $wanted_mib in
    *[!0-9]*)
        echo "worldstream: WORLDSTREAM_SHM_MIB: wanted a number of MiB, got '$wanted_mib'" >&2
        exit 1
        ;;
esac

shm_mib=$(df -Pm /dev/shm 2>/dev/null | awk 'NR == 2 { print $2 }')
shm_mib=${shm_mib:-0} # there is none
if [ "$shm_mib" -lt "$wanted_mib" ]; then
    echo "worldstream: /dev/shm: wanted $wanted_mib MiB, got $shm_mib: docker run --shm-size=1g, or shm_size" >&2
    exit 1
fi

stack_kib=$(ulimit -H -s)
if [ "$stack_kib" != unlimited ] && [ "$stack_kib" -lt "$wanted_stack_kib" ]; then
    echo "worldstream: stack: wanted $wanted_stack_kib KiB, got $stack_kib: large JSON bodies may end the server;" \
        "docker run --ulimit stack=268435456" >&2
fi

# The launcher proves the server, asks its models whether they live, and starts it again when they do not. When that
# does not help either it ends, and the container's restart policy has its turn.
exec python3 "$home/serve.py" --restart --max-restarts 5 --canary-every-s 30 --exit-timeout-s 20 "$@"
