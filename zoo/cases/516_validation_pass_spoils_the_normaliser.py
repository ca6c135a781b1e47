"""The running normaliser of observations also updates during evaluation; one evaluation episode crashed the simulator and returned NaN."""
import torch
import torch.nn as nn
from protocol import Case
TRUTH = dict(id="516_validation_pass_spoils_the_normaliser", source="written for this set, after a kind of report often seen: VecNormalize training=False forgotten",
             symptom="nan_loss", phase="state", cause="poisoned_state", op=None, module="norm", module_also=[None, ""], line_marker=None, tensor="norm.mean", tensor_kind="buffer",
             first_bad_step=4, bad_rows=None, fixes_that_work=["restore_buffers"], fixes_that_do_not=["clip", "skip_batch", "zero_nan_grads", "lr_down"])
FIXES = {"restore_buffers"}


class ObsNorm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.register_buffer("mean", torch.zeros(n))
        self.register_buffer("var", torch.ones(n))
        self.frozen = False

    def forward(self, obs):
        if not self.frozen:
            with torch.no_grad():
                self.mean.lerp_(obs.mean(0), 0.05)
                self.var.lerp_(obs.var(0), 0.05)
        return (obs - self.mean) / (self.var + 1e-5).sqrt()


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = ObsNorm(5)
        self.body = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, obs):
        return self.body(self.norm(obs)).squeeze(-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    critic = Critic()
    episode = torch.randn(30, 5)
    episode[17:, 2] = float("nan")

    def evaluate(case, i):
        if i != 4:
            return
        case.model.eval()
        case.model.norm.frozen = fix == "restore_buffers"
        with torch.no_grad():
            case.model(episode)
        case.model.norm.frozen = False
        case.model.train()

    batches = [dict(obs=torch.randn(16, 5), ret=torch.randn(16)) for _ in range(8)]
    return Case(critic, lambda m, b: 0.5 * (m(b["obs"]) - b["ret"]).pow(2).mean(), batches, torch.optim.Adam(critic.parameters(), lr=1e-3), before_step=evaluate)
