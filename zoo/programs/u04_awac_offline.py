"""Offline RL by advantage weighted regression (AWAC); one logged reward is in cents instead of euros."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Log(Dataset):
    def __init__(self, n=400):
        g = torch.Generator().manual_seed(8)
        self.obs = torch.randn(n, 6, generator=g)
        self.act = torch.randint(0, 4, (n,), generator=g)
        self.ret = self.obs[:, 0] + 0.3 * torch.randn(n, generator=g)
        self.ret[263] = 140.0

    def __len__(self):
        return len(self.obs)

    def __getitem__(self, i):
        return self.obs[i], self.act[i], self.ret[i]


def policy_loss(logits, act, advantage, temperature=0.5):
    weight = torch.exp(advantage / temperature)
    return -(weight * logits.log_softmax(-1).gather(1, act[:, None]).squeeze(1)).mean()


def run():
    torch.manual_seed(1)
    actor = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4))
    critic = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
    pi_opt = torch.optim.Adam(actor.parameters(), 1e-3)
    v_opt = torch.optim.Adam(critic.parameters(), 1e-3)
    loader = DataLoader(Log(), batch_size=25, shuffle=True, generator=torch.Generator().manual_seed(2))
    for epoch in range(3):
        for obs, act, ret in loader:
            v = critic(obs).squeeze(-1)
            v_loss = nn.functional.smooth_l1_loss(v, ret)
            v_opt.zero_grad()
            v_loss.backward()
            v_opt.step()

            p_loss = policy_loss(actor(obs), act, ret - v.detach())
            pi_opt.zero_grad()
            p_loss.backward()
            pi_opt.step()
        print(epoch, v_loss.item(), p_loss.item())
    both = [*actor.parameters(), *critic.parameters()]
    print("FINITE" if all(torch.isfinite(p).all() for p in both) else "POISONED")


run()
