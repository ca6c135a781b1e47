"""Evolution strategies: no backward at all, the gradient is put into .grad by hand and Adam does the rest."""
import torch
import torch.nn as nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def play(policy, level):
    """Walk along a line for 12 steps; a point for every step beyond the flag."""
    x, v, score = torch.zeros(1), torch.zeros(1), 0.0
    for t in range(12):
        a = torch.tanh(policy(torch.cat([x, v, torch.tensor([t / 12])])))
        v = 0.8 * v + 0.2 * a
        x = x + v
        score += float(x > level)
    return score


def main():
    torch.manual_seed(5)
    policy = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    opt = torch.optim.Adam(policy.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(5)
    levels = [0.2] * 16
    with torch.no_grad():
        for gen, level in enumerate(levels):
            centre = parameters_to_vector(policy.parameters()).clone()
            eps = torch.randn(12, len(centre), generator=g)
            scores = []
            for e in eps:
                vector_to_parameters(centre + 0.3 * e, policy.parameters())
                scores.append(play(policy, level))
            vector_to_parameters(centre, policy.parameters())
            f = torch.tensor(scores)
            f = (f - f.mean()) / f.std()  # BUG
            grad = -(f[:, None] * eps).mean(0) / 0.3
            at = 0
            for p in policy.parameters():
                p.grad = grad[at:at + p.numel()].view_as(p).clone()
                at += p.numel()
            opt.step()
            print("generation", gen, "best", max(scores), "mean", sum(scores) / 12)
    print("FINITE" if all(torch.isfinite(p).all() for p in policy.parameters()) else "POISONED")


main()
