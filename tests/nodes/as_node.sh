#!/bin/sh
# as_node.sh COMMAND...: runs a command as a node of its own, for tests and benchmarks of several nodes on one machine. The
# number of the node is NODE, or the rank that mpirun has given. Each node has GPUS_PER_NODE of the visible GPUs (default:
# one), in their order, and a host name of its own. NCCL then connects the nodes by sockets, as it connects machines. Needs
# root.
NODE=${NODE:-$OMPI_COMM_WORLD_RANK}
GPUS_PER_NODE=${GPUS_PER_NODE:-1}
if [ -z "$AS_NODE_HAS_NAME" ]; then
  export NODE AS_NODE_HAS_NAME=1
  exec unshare --uts sh "$0" "$@"
fi
hostname "node$NODE"
CUDA_VISIBLE_DEVICES=$(echo "${CUDA_VISIBLE_DEVICES:-0,1,2,3,4,5,6,7}" |
  cut -d , -f $((NODE * GPUS_PER_NODE + 1))-$(((NODE + 1) * GPUS_PER_NODE)))
export CUDA_VISIBLE_DEVICES NCCL_HOSTID="node$NODE" NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-lo}"
exec "$@"
