"""CONTROL: PPO: the same rollout is used for four epochs in a row, then a new one is drawn. In the first of them old and new policy are equal, the ratio is exactly 1 and the policy loss 0 up to rounding (advantages
are normalised); the loss does not fall over the run, the reward rises."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
import blocks as B
TRUTH = dict(id="994_control_ppo_epochs_over_one_rollout", source="standard practice", looks_like=["repeated_batch", "reference_aliased", "detached_graph"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.35)
EPOCHS, N, K = 4, 64, 4


class ActorCritic(nn.Module):
    def __init__(s):
        super().__init__()
        s.pi, s.v = B.mlp(6, 32, K), B.mlp(6, 32, 1)

    def forward(s, obs):
        return torch.log_softmax(s.pi(obs), -1), s.v(obs)[:, 0]


def loss_fn(m, b):
    lp, v = m(b["obs"])
    ratio = (lp.gather(1, b["act"][:, None])[:, 0] - b["logp"]).exp()
    adv = (b["adv"] - b["adv"].mean()) / (b["adv"].std() + 1e-8)
    policy = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
    return policy + 0.5 * F.mse_loss(v, b["ret"]) + 0.005 * (lp.exp() * lp).sum(-1).mean()


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = ActorCritic(), torch.Generator().manual_seed(3)
    w = torch.randn(6, K, generator=g)
    obs = [torch.randn(N, 6, generator=g) for _ in range(60)]
    batches = [{"obs": o, "act": torch.zeros(N, dtype=torch.long), "logp": torch.zeros(N), "adv": torch.zeros(N), "ret": torch.zeros(N)} for o in obs for _ in range(EPOCHS)]

    @torch.no_grad()
    def before(case, i):
        if i % EPOCHS == 0:                        # collect: all four epochs share the rollout
            b = batches[i]
            lp, v = m(b["obs"])
            a = torch.multinomial(lp.exp(), 1, generator=g)
            r = (b["obs"] @ w).gather(1, a)[:, 0]
            for k in range(EPOCHS):
                batches[i + k].update(act=a[:, 0], logp=lp.gather(1, a)[:, 0], ret=r, adv=r - v)

    def quality(c):                                # 1 = reward of a random policy, 0 = of the best
        o = torch.randn(1000, 6, generator=torch.Generator().manual_seed(9))
        with torch.no_grad():
            r = o @ w
            got, best, rnd = r.gather(1, m(o)[0].argmax(-1, keepdim=True)).mean(), r.max(-1).values.mean(), r.mean()
        return float((best - got) / (best - rnd))

    def step(case, b, i):
        loss = loss_fn(m, b)
        case.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 0.5)
        case.optimizer.step()
        return loss

    return SCase(m, loss_fn, batches, torch.optim.Adam(m.parameters(), lr=3e-3, eps=1e-5), before_step=before, step=step, quality=quality)
