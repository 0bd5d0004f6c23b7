#!/bin/bash
# The carrier of a site at the gateway of a cluster: it has the network, and no file of the site. It reaches the agent on
# its node by a Unix socket that ssh forwards. Run it as the user of the carrier, whose processes alone may connect to the
# agent; that user must be able to log in to the node. docs/user-guide/deployment.md has the steps.
#
#   deploy/slurm/carrier.sh "$(squeue --noheader --name capedjica-agent --format %N)" /cluster/capedjica-carrier/HASH

set -euo pipefail
node=${1:?the node of the agent}
folder=${2:?the folder of the carrier, carrier/HASH}
# The agent wrote the path of its socket here.
socket=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["socket"])' "$folder/local/capedjica.json")
install --directory --mode=0700 "$(dirname "$socket")"
ssh -N -o BatchMode=yes -o ExitOnForwardFailure=yes -o StreamLocalBindUnlink=yes -o ServerAliveInterval=15 \
    -L "$socket:$socket" "$node" &
forward=$!
trap 'kill "$forward" 2> /dev/null || true; rm --force "$socket"' EXIT
until [ -S "$socket" ]; do
  kill -0 "$forward" 2> /dev/null || { echo "ssh to $node failed" >&2; exit 1; }
  sleep 0.2
done
capedjica site carrier "$folder"
