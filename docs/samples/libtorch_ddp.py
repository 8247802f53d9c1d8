# libtorch.cpp in Python: torchrun --nproc-per-node 2 libtorch_ddp.py
import torch
from torch import nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(1)
i = torch.arange(600)
a, b = (i % 25) / 25, torch.div(i, 25, rounding_mode="floor") / 24
data = TensorDataset(torch.stack([a, b], 1), torch.sin(3 * a) * b)
rows = DataLoader(data, batch_size=600 // dist.get_world_size(), sampler=DistributedSampler(data))

net = DistributedDataParallel(nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1), nn.Flatten(0)))
adam = torch.optim.Adam(net.parameters(), lr=0.02)
for step in range(300):
    rows.sampler.set_epoch(step)
    for x, y in rows:
        adam.zero_grad()
        loss = nn.functional.mse_loss(net(x), y)
        loss.backward()
        adam.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.SUM)
        if step == 0:
            first = mean.item() / dist.get_world_size()

last = mean.item() / dist.get_world_size()
if dist.get_rank() == 0:
    print(f"{sum(p.numel() for p in net.parameters())} parameters, loss {first:.2f}, then {last:.2f}")
    torch.save(net.module.state_dict(), "net.pt")
dist.destroy_process_group()
