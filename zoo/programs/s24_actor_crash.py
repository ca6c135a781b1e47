"""Actor-critic with a temperature that is annealed to nothing; ends in a crash inside torch.distributions."""
import torch
import torch.nn as nn


class ActorCritic(nn.Module):
    def __init__(self, obs=5, actions=3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, 32), nn.ReLU())
        self.actor = nn.Linear(32, actions)
        self.critic = nn.Linear(32, 1)
        self.register_buffer("temperature", torch.tensor(1.0))

    def forward(self, x):
        h = self.body(x)
        return self.actor(h) / self.temperature, self.critic(h).squeeze(-1)  # BUG

    def anneal(self, by):
        self.temperature.sub_(by).clamp_(min=0.0)


def env_step(obs, action):
    return (action == obs[:, :3].argmax(1)).float()


def a2c_loss(model, obs):
    logits, value = model(obs)
    dist = torch.distributions.Categorical(logits=logits)
    action = dist.sample()
    reward = env_step(obs, action)
    adv = (reward - value).detach()
    return -(dist.log_prob(action) * adv).mean() + 0.5 * (reward - value).pow(2).mean(), reward.mean().item()


torch.manual_seed(16)
model = ActorCritic()
opt = torch.optim.RMSprop(model.parameters(), lr=1e-3, eps=1e-5)
for step in range(200):
    loss, reward = a2c_loss(model, torch.randn(32, 5))
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    opt.step()
    model.anneal(0.0078125)
    if step % 40 == 0:
        print(f"step {step} reward {reward:.3f} temperature {model.temperature.item():.3f}")
print("FINITE" if all(torch.isfinite(p).all() for p in model.parameters()) else "POISONED")
