"""CONTROL: actor-critic on a contextual bandit: the advantage is detached, so the policy loss trains no value; two optimizers, each cleared before its own backward; rewards (B,) against values
squeezed to (B,); an entropy bonus whose weight falls to 0; the policy loss hovers around 0 and says nothing."""
import torch, torch.nn as nn, torch.nn.functional as F
from protocol_silent import SCase
TRUTH = dict(id="1386_control_actor_critic_with_detached_advantage", source="standard practice", looks_like=["detached_graph", "broadcasting_loss_shape", "zero_grad_before_step"],
             symptom="none", phase="none", cause="none", op=None, module=None, bad_rows=None, line_marker=None, first_bad_step=None, knowable_at=None, static_visible={}, fixes_that_work=[], fixes_that_do_not=[], quality_limit=0.3)
ACTIONS = 4


class ActorCritic(nn.Module):
    def __init__(s):
        super().__init__()
        s.actor = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, ACTIONS))
        s.critic = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(s, obs):
        return torch.distributions.Categorical(logits=s.actor(obs)), s.critic(obs).squeeze(-1)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    m, g = ActorCritic(), torch.Generator().manual_seed(86)
    world = torch.randn(6, ACTIONS, generator=g)
    data, test = [{"obs": torch.randn(64, 6, generator=g)} for _ in range(300)], torch.randn(512, 6, generator=g)
    opt_a, opt_c = torch.optim.Adam(m.actor.parameters(), lr=1e-2), torch.optim.Adam(m.critic.parameters(), lr=1e-2)

    def losses(m, b, w=0.0):
        d, v = m(b["obs"])
        a = d.sample()
        r = (b["obs"] @ world).gather(1, a[:, None]).squeeze(1)
        return -(d.log_prob(a) * (r - v).detach()).mean() - w * d.entropy().mean(), F.mse_loss(v, r)

    def step(case, b, i):
        pl, vl = losses(m, b, 0.02 * max(0.0, 1 - i / 150))
        opt_c.zero_grad()
        vl.backward()
        opt_c.step()
        opt_a.zero_grad()
        pl.backward()
        torch.nn.utils.clip_grad_norm_(m.actor.parameters(), 1.0)
        opt_a.step()
        return pl

    def quality(c):                                # how often the greedy action is not the best
        with torch.no_grad():
            return float((m.actor(test).argmax(-1) != (test @ world).argmax(-1)).float().mean())

    return SCase(m, lambda m, b: sum(losses(m, b)), data, opt_a, step=step, quality=quality, extra={"opt_c": opt_c})
