#!/bin/sh
# torchrun_on_nodes.sh PYTHON PORT SCRIPT...: runs a script of PyTorch on two nodes of this machine, with one or
# GPUS_PER_NODE GPUs each (tests/nodes/as_node.sh). Each node has a torchrun of its own, as on two machines.
python=$1
port=$2
shift 2
as_node=$(dirname "$0")/../../tests/nodes/as_node.sh
for node in 0 1; do
  NODE=$node "$as_node" "$python" -m torch.distributed.run --nnodes 2 --node-rank "$node" --nproc-per-node "${GPUS_PER_NODE:-1}" \
    --master-addr 127.0.0.1 --master-port "$port" "$@" &
done
wait
