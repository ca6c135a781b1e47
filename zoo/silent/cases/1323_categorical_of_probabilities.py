"""REINFORCE on a contextual bandit: the policy ends in softmax and the loop builds Categorical(logits=policy(obs)). The probabilities are taken for logits and go through softmax once more: with eight
actions no action can ever have more than 28 percent."""
import torch, torch.nn as nn
from protocol_silent import SCase
TRUTH = dict(id="1323_categorical_of_probabilities", source="constructed; the usual slip Categorical(logits=probs)", symptom="silent", phase="loss",
             cause="softmax_twice", op="log_softmax", module=None, bad_rows=None, line_marker="# <-- origin", first_bad_step=0, knowable_at=0,
             static_visible=dict(source="yes: softmax at the end of the policy and logits= in the loop", objects="no: in the first batch yes (rows sum to 1 where logits are expected)"),
             quality_limit=0.4, margin=1.5, fixes_that_work=["probs"], fixes_that_do_not=["lr_up", "lr_down", "clip", "longer"])
FIXES = {"probs"}
ACTIONS = 8


class Policy(nn.Module):
    def __init__(s):
        super().__init__()
        s.net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, ACTIONS), nn.Softmax(-1))

    def forward(s, obs):
        return s.net(obs)


def signal(case, i, r):
    """what is handed over as logits is non-negative and sums to one"""
    d = case.extra.get("dist")
    if i < 0 or d is None or case.extra["fix"]:
        return False
    return bool((d >= 0).all()) and bool(torch.allclose(d.sum(-1), torch.ones(len(d)), atol=1e-4))


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Policy(), torch.Generator().manual_seed(43)
    world = torch.randn(6, ACTIONS, generator=g)
    data, test = [{"obs": torch.randn(64, 6, generator=g)} for _ in range(250)], torch.randn(512, 6, generator=g)
    extra = {"fix": fix}

    def dist(obs):
        p = m(obs)
        extra["dist"] = p.detach()
        return torch.distributions.Categorical(probs=p) if fix else torch.distributions.Categorical(logits=p)  # <-- origin

    def loss_fn(m, b):
        d = dist(b["obs"])
        a = d.sample()
        reward = (a == (b["obs"] @ world).argmax(-1)).float()
        return -(d.log_prob(a) * (reward - reward.mean())).mean()

    def quality(c):                                # 1 - expected reward of the policy that is in use
        with torch.no_grad():
            return float(1 - dist(test).probs.gather(1, (test @ world).argmax(-1, keepdim=True)).mean())

    return SCase(m, loss_fn, data, torch.optim.Adam(m.parameters(), lr=1e-2), quality=quality, extra=extra)
