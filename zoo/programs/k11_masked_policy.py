"""Actor-critic with illegal actions at -inf and an entropy bonus by xlogy."""
import hashlib
import torch
from torch import nn


class ActorCritic(nn.Module):
    def __init__(self, n=6, actions=5):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n, 32), nn.Tanh())
        self.pi, self.v = nn.Linear(32, actions), nn.Linear(32, 1)

    def forward(self, s, legal):
        h = self.body(s)
        return self.pi(h).masked_fill(~legal, float("-inf")), self.v(h).squeeze(-1)


def main():
    torch.manual_seed(0)
    net = ActorCritic()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    good = torch.randn(6, 5)
    for step in range(130):
        s = torch.randn(24, 6)
        legal = torch.rand(24, 5) < 0.6
        legal[torch.arange(24), torch.randint(0, 5, (24,))] = True
        logits, value = net(s, legal)
        p = logits.softmax(-1)
        a = torch.multinomial(p.detach(), 1)
        reward = (s @ good).gather(1, a).squeeze(1)
        if step % 40 == 17:
            reward = reward * 500  # jackpot round
        log_pi = logits.log_softmax(-1).gather(1, a).squeeze(1)
        entropy = -torch.special.xlogy(p, p.detach().clamp(min=1e-30)).sum(-1).mean()
        loss = -(log_pi * (reward - value).detach()).mean() + 0.5 * (value - reward).pow(2).mean() - 0.01 * entropy
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        opt.step()
        if step % 20 == 0:
            print(f"{step} reward {reward.mean().item():.3f} loss {loss.item():.3f}")
    print("FINITE" if all(torch.isfinite(t).all() for t in net.state_dict().values()) else "POISONED")
    print(hashlib.sha256(b"".join(t.detach().double().numpy().tobytes() for t in net.state_dict().values())).hexdigest())


main()
