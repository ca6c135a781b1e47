"""Advantages kept in half to save memory; every rollout of one batch got the same reward and 1e-8 is 0 in fp16."""
import torch, torch.nn as nn
from protocol import Case

TRUTH = dict(id="501_half_advantages_all_equal", source="written for this set, after a kind of report often seen: whiten in fp16",
             symptom="nan_loss", phase="loss", cause="fp16_underflow", op="div", op_also=["mul"], module=None, line_marker="# <-- origin",
             first_bad_step=4, bad_rows=None, fixes_that_work=["eps", "fp32", "skip_batch"], fixes_that_do_not=["clip", "zero_nan_grads", "lr_down"])
FIXES = {"eps", "fp32"}


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    policy = nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.Linear(24, 4))
    eps = 1e-3 if fix == "eps" else 1e-8

    def whiten(adv):
        if fix == "fp32":
            adv = adv.float()
        return (adv - adv.mean()) / (adv.std() + eps)  # <-- origin

    def loss_fn(policy, rollout):
        obs, act, reward = rollout
        logp = torch.log_softmax(policy(obs), dim=-1).gather(1, act[:, None]).squeeze(1)
        return -(whiten(reward) * logp).mean()

    rollouts = []
    for k in range(8):
        obs = torch.randn(10, 6)
        act = torch.randint(0, 4, (10,))
        reward = torch.randn(10).half() if k != 4 else torch.ones(10).half()
        rollouts.append((obs, act, reward))
    return Case(policy, loss_fn, rollouts, torch.optim.RMSprop(policy.parameters(), lr=5e-4))
