"""The critic is frozen during the actor's update and released afterwards, both by looping over `critic_params = m.critic.parameters()`: a generator, empty at the second loop.
From the second step on the critic head is frozen; its loss still has a graph through the shared encoder, so nothing complains."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import blocks as B, sblocks as S
TRUTH = dict(id="908_exhausted_generator_keeps_critic_frozen", source="constructed", symptom="silent", phase="loop", cause="frozen_by_mistake", op=None, module="critic", bad_rows=None,
             line_marker="# <-- origin", first_bad_step=1, knowable_at=1, tensors=["critic.fc1.weight", "critic.fc1.bias", "critic.fc2.weight", "critic.fc2.bias"],
             static_visible=dict(source="yes: one generator iterated twice", objects="no: from the first step on yes (critic in an optimizer, requires_grad False)"),
             named=dict(kind="never_moves", names=["critic.fc1.weight", "critic.fc2.weight"]),
             quality_limit=0.4, margin=2.0, fixes_that_work=["list"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"list"}


class Agent(nn.Module):
    def __init__(s):
        super().__init__()
        s.encoder, s.actor, s.critic = nn.Sequential(nn.Linear(6, 24), nn.Tanh()), B.mlp(24, 24, 2), B.mlp(26, 48, 1)

    def q(s, h, a):
        return s.critic(torch.cat([h, a], -1))[:, 0]

    def forward(s, obs):
        return torch.tanh(s.actor(s.encoder(obs)))


def transitions(n, seed, bs=32):
    w = torch.randn(6, 2, generator=torch.Generator().manual_seed(4)) / 3
    g, out = torch.Generator().manual_seed(seed), []
    for _ in range(n):
        o, a = torch.randn(bs, 6, generator=g), torch.rand(bs, 2, generator=g) * 2 - 1
        out.append({"obs": o, "act": a, "rew": 2 * a @ torch.tensor([0.8, -0.6]) - a.pow(2).sum(1) + torch.tanh(o @ w).sum(1)})
    return out


def critic_loss(m, b):
    return F.mse_loss(m.q(m.encoder(b["obs"]), b["act"]), b["rew"])


def signal(case, i, r):
    """the critic's own optimizer steps and the critic has no gradient"""
    return bool(r) and r.stepped and not r.grads["critic.fc1.weight"]


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, test = Agent(), S.cat(transitions(16, 1))
    opt = torch.optim.Adam([*m.encoder.parameters(), *m.critic.parameters()], lr=5e-3)
    opt_actor = torch.optim.Adam(m.actor.parameters(), lr=1e-3)

    def step(case, b, i):
        opt.zero_grad()
        loss = critic_loss(m, b)
        loss.backward()
        opt.step()
        critic_params = m.critic.parameters()  # <-- origin
        if fix:
            critic_params = list(critic_params)
        for p in critic_params:
            p.requires_grad_(False)
        h = m.encoder(b["obs"]).detach()
        opt_actor.zero_grad()
        (-m.q(h, torch.tanh(m.actor(h))).mean()).backward()
        opt_actor.step()
        for p in critic_params:
            p.requires_grad_(True)
        return loss

    return SCase(m, critic_loss, transitions(250, 0), opt, step=step, extra={"optimizers": [opt, opt_actor]}, quality=lambda c: S.in_eval(m, lambda: critic_loss(m, test)))
