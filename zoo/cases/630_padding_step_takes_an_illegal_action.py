"""A recurrent policy with action masks: illegal actions have log-probability -inf. Short episodes are padded with action 0 and multiplied by
a mask of zeros; where action 0 is illegal at a padded step, -inf * 0 is NaN."""
import torch, torch.nn as nn
from protocol import Case
TRUTH = dict(id="630_padding_step_takes_an_illegal_action", source="common report: masked log-probability times zero mask in policy gradients",
             symptom="nan_loss", phase="loss", cause="log_zero", op="mul", module=None, line_marker="# <-- origin", first_bad_step=5, bad_rows=[3],
             fixes_that_work=["double_where", "finfo_min", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"double_where", "finfo_min"}


class Policy(nn.Module):
    def __init__(self, obs=5, actions=4, d=12):
        super().__init__()
        self.rnn, self.pi = nn.GRU(obs, d, batch_first=True), nn.Linear(d, actions)

    def forward(self, obs):
        return self.pi(self.rnn(obs)[0])


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = Policy(), torch.Generator().manual_seed(70)
    floor = torch.finfo(torch.float32).min / 4 if fix == "finfo_min" else float("-inf")

    def loss_fn(m, ep):
        logits = m(ep["obs"]).masked_fill(~ep["legal"], floor)
        logp = logits.log_softmax(-1).gather(-1, ep["action"][..., None]).squeeze(-1)
        if fix == "double_where":
            logp = torch.where(ep["valid"].bool(), logp, torch.zeros_like(logp))
        return -(logp * ep["valid"] * ep["advantage"]).sum() / ep["valid"].sum()  # <-- origin

    data = []
    for _ in range(10):
        legal = torch.rand(5, 8, 4, generator=g) > 0.4
        action = torch.randint(0, 4, (5, 8), generator=g)
        legal.scatter_(-1, action[..., None], True)
        valid = torch.ones(5, 8)
        valid[1, 6:] = valid[3, 5:] = 0.0
        for r, t in ((1, 6), (3, 5)):
            action[r, t:], legal[r, t:, 0] = 0, True
        data.append(dict(obs=torch.randn(5, 8, 5, generator=g), legal=legal, action=action, valid=valid, advantage=torch.randn(5, 8, generator=g)))
    data[5]["legal"][3, 5:] = torch.tensor([False, True, True, True])
    return Case(m, loss_fn, data, torch.optim.RMSprop(m.parameters(), lr=1e-3, alpha=0.99))
