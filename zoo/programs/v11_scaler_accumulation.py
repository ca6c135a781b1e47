"""fp16 autocast with a GradScaler on a CPU: its first scales are too high, as always; accumulation, unscale, clipping, a weight average at the end."""
import hashlib

import torch
import torch.nn as nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), nn.Linear(8, 4)

    def forward(self, x):
        return self.fc(torch.relu(self.bn(self.conv(x))).mean(2))


def loop(model, loader, epochs, accumulate=2):
    opt = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=8)
    average, swa_sched = AveragedModel(model), SWALR(opt, swa_lr=0.02, anneal_epochs=1)
    for epoch in range(epochs):
        for i, (x, y) in enumerate(loader):
            with torch.autocast("cpu", torch.float16):
                loss = nn.functional.cross_entropy(model(x), y, label_smoothing=0.1) / accumulate
            scaler.scale(loss).backward()
            if (i + 1) % accumulate == 0:
                scaler.unscale_(opt)
                nn.utils.clip_grad_norm_(model.parameters(), 2.0)
                scaler.step(opt)
                scaler.update()
                opt.zero_grad()
        if epoch >= 2:
            average.update_parameters(model)
            swa_sched.step()
        print(epoch, loss.item(), scaler.get_scale())
    update_bn([x for x, _ in loader], average)
    return average


torch.manual_seed(8)
x, y = torch.randn(160, 3, 12) * 20, torch.randint(0, 4, (160,))
model = Net()
average = loop(model, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16), 5)
state = [*model.state_dict().values(), *average.state_dict().values()]
print("FINITE" if all(torch.isfinite(t).all() for t in state) else "POISONED")
print(hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in state)).hexdigest())
