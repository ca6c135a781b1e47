"""Two-stage training: stage one keeps a debiased weight average and saves it; stage two resumes from the file and starts from the average."""
import torch
import torch.nn as nn


class Average:
    """Exponential average of the weights with Adam-like bias correction."""

    def __init__(self, model, decay=0.98):
        self.decay, self.count = decay, 0
        self.sums = {k: torch.zeros_like(v) for k, v in model.state_dict().items()}

    def update(self, model):
        self.count += 1
        for k, v in model.state_dict().items():
            self.sums[k].mul_(self.decay).add_(v, alpha=1 - self.decay)

    def weights(self):
        correction = torch.tensor(1.0 - self.decay ** self.count)
        return {k: s / correction for k, s in self.sums.items()}


def data():
    g = torch.Generator().manual_seed(6)
    x = torch.randn(256, 10, generator=g)
    return x, (x[:, :2].prod(1) > 0).long()


def net():
    return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))


def epoch(model, opt, avg, x, y):
    for i in range(0, len(x), 32):
        loss = nn.functional.cross_entropy(model(x[i:i + 32]), y[i:i + 32])
        opt.zero_grad()
        loss.backward()
        opt.step()
        avg.update(model)
    return loss.item()


def stage_one(path):
    torch.manual_seed(0)
    model = net()
    opt, avg = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), Average(model)
    x, y = data()
    for e in range(3):
        print("stage 1", e, epoch(model, opt, avg, x, y))
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, path)


def stage_two(path):
    state = torch.load(path)
    model = net()
    model.load_state_dict(state["model"])
    opt, avg = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9), Average(model)
    opt.load_state_dict(state["opt"])
    x, y = data()
    print("resumed", epoch_loss(model, x, y))
    model.load_state_dict(avg.weights())
    for e in range(3):
        print("stage 2", e, epoch(model, opt, avg, x, y))
    return model


@torch.no_grad()
def epoch_loss(model, x, y):
    return nn.functional.cross_entropy(model(x), y).item()


stage_one("stage1.pt")
model = stage_two("stage1.pt")
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
