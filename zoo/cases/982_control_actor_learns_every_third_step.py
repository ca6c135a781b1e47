"""CONTROL: TD3: the actor is updated on every third step only; on the others it has no gradient at all and only the critic's loss is there."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol import Case
import blocks as B
TRUTH = dict(id="982_control_actor_learns_every_third_step", source="https://arxiv.org/abs/1802.09477", symptom="none", phase="none", cause="none", op=None, module=None,
             line_marker=None, first_bad_step=None, bad_rows=None, fixes_that_work=[], fixes_that_do_not=[])


class TD3(nn.Module):
    def __init__(s):
        super().__init__()
        s.actor, s.critic = B.mlp(6, 24, 2), B.mlp(8, 32, 1, nn.ReLU)


def loss_fn(m, b):
    q = m.critic(torch.cat([b["obs"], b["act"]], 1)).squeeze(1)
    loss = F.mse_loss(q, b["ret"])
    if bool(b["policy"][0]):
        for p in m.critic.parameters():
            p.requires_grad_(False)
        loss = loss.detach() - m.critic(torch.cat([b["obs"], torch.tanh(m.actor(b["obs"]))], 1)).mean()
        for p in m.critic.parameters():
            p.requires_grad_(True)
    return loss


def make(seed=0, fix=None):
    m, g = TD3(), torch.Generator().manual_seed(82)
    data = []
    for i in range(18):
        obs, act = torch.randn(12, 6, generator=g), torch.rand(12, 2, generator=g) * 2 - 1
        data.append(dict(obs=obs, act=act, ret=(obs[:, :2] * act).sum(1), policy=torch.full((12,), i % 3 == 2)))
    return Case(m, loss_fn, data, torch.optim.Adam(m.parameters(), lr=3e-3),
                healthy=lambda log: log[0].grads["actor.fc1.weight"] is None and log[2].grads["actor.fc1.weight"] > 0 and log[2].grads["critic.fc1.weight"] is None)
