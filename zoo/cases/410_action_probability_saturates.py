"""A policy head with a binary cross entropy written out by hand: for one confident state the sigmoid rounds to exactly 1 and
0 * log(0) is NaN."""
import torch, torch.nn as nn
from protocol import Case
import blocks as B
TRUTH = dict(id="410_action_probability_saturates", source="common report: y*log(p)+(1-y)*log(1-p) with a saturated sigmoid",
             symptom="nan_loss", phase="loss", cause="log_zero", op="log", op_also=["mul"], module=None, line_marker="# <-- origin",
             first_bad_step=5, bad_rows=[4], fixes_that_work=["eps", "clamp", "skip_batch", "drop_rows", "log_sigmoid"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"eps", "clamp", "log_sigmoid"}


def bce(p, y, w, how=None):
    if how == "clamp":
        p = p.clamp(1e-6, 1 - 1e-6)
    e = 1e-7 if how == "eps" else 0.0
    positive = y * torch.log(p + e)
    negative = (1 - y) * torch.log(1 - p + e)  # <-- origin
    return -(w * (positive + negative)).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    policy = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))

    def behaviour_cloning(policy, batch):
        obs, (action, weight) = batch
        logit = policy(obs).squeeze(-1)
        if fix == "log_sigmoid":
            return nn.functional.binary_cross_entropy_with_logits(logit, action, weight)
        return bce(torch.sigmoid(logit), action, weight, fix)

    g, data = torch.Generator().manual_seed(21), []
    for _ in range(9):
        obs = torch.randn(7, 6, generator=g)
        data.append((obs, ((obs[:, 0] > 0).float(), torch.rand(7, generator=g))))
    with torch.no_grad():
        policy[2].weight.mul_(-13.0)  # a policy that is sure of itself
        obs, (action, _) = data[5]
        tried = torch.randn(2000, 6, generator=g) * 3
        obs[4] = tried[policy(tried).squeeze(-1).argmax()]  # the most confident of many states
        assert policy(obs[4]).item() > 20
        action[4] = 1.0
    return Case(policy, behaviour_cloning, data, B.sgd(policy, 1e-3))
