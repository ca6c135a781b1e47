"""Large-batch training with LARS; an auxiliary head is faded out over the first steps."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class LARS(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.9, trust=0.02):
        super().__init__(params, dict(lr=lr, momentum=momentum, trust=trust))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                weight_norm = p.norm()
                grad_norm = p.grad.norm()
                ratio = group["trust"] * weight_norm / grad_norm
                update = p.grad * ratio
                state = self.state[p]
                if "buf" not in state:
                    state["buf"] = torch.zeros_like(p)
                state["buf"].mul_(group["momentum"]).add_(update, alpha=group["lr"])
                p.sub_(state["buf"])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU())
        self.main = nn.Linear(40, 5)
        self.aux = nn.Linear(40, 16)

    def forward(self, x):
        h = self.body(x)
        return self.main(h), self.aux(h)


def aux_weight(step, fade=15):
    return max(0.0, 1.0 - step / fade)


def batches(steps, size=64):
    g = torch.Generator().manual_seed(33)
    centres = torch.randn(5, 16, generator=g) * 2
    for _ in range(steps):
        y = torch.randint(0, 5, (size,), generator=g)
        yield centres[y] + torch.randn(size, 16, generator=g), y


def main(steps=25):
    torch.manual_seed(12)
    net = Net()
    optimizer = LARS(net.parameters(), lr=0.5)
    for step, (x, y) in enumerate(batches(steps)):
        logits, rebuilt = net(x)
        loss = F.cross_entropy(logits, y) + aux_weight(step) * F.mse_loss(rebuilt, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f} aux weight {aux_weight(step):.2f}")
    state = net.state_dict()
    print("FINITE" if all(bool(v.isfinite().all()) for v in state.values()) else "POISONED")


if __name__ == "__main__":
    main()
