"""PPO on a toy control task, functional style, several epochs over one rollout buffer."""
import torch
import torch.nn as nn
from torch.distributions import Normal


def policy_net():
    return nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 1))


def rollout(net, log_std, n, stale):
    obs = torch.randn(n, 3)
    with torch.no_grad():
        dist = Normal(net(obs), log_std.exp())
        act = dist.sample()
        logp = dist.log_prob(act).squeeze(1)
    if stale:  # the worker still had the weights of an hour ago
        logp = logp - 120.0 * (torch.arange(n) == 11)
    rew = -(act.squeeze(1) - obs[:, 0]).pow(2)
    return dict(obs=obs, act=act, logp=logp, adv=(rew - rew.mean()) / (rew.std() + 1e-6), ret=rew)


def ppo_loss(net, value, log_std, mb, clip=0.2):
    dist = Normal(net(mb["obs"]), log_std.exp())
    logp = dist.log_prob(mb["act"]).squeeze(1)
    ratio = torch.exp(logp - mb["logp"])  # BUG
    unclipped, clipped = ratio * mb["adv"], ratio.clamp(1 - clip, 1 + clip) * mb["adv"]
    actor = -torch.min(unclipped, clipped).mean()
    critic = (value(mb["obs"]).squeeze(1) - mb["ret"]).pow(2).mean()
    return actor + 0.5 * critic - 0.01 * dist.entropy().mean()


def minibatches(buf, size):
    for i in range(0, len(buf["obs"]), size):
        yield {k: v[i:i + size] for k, v in buf.items()}


def main(iterations=12):
    torch.manual_seed(14)
    net, value = policy_net(), policy_net()
    log_std = nn.Parameter(torch.zeros(1))
    params = [*net.parameters(), *value.parameters(), log_std]
    opt = torch.optim.Adam(params, lr=3e-3)
    for it in range(iterations):
        buf = rollout(net, log_std, 64, stale=it == 7)
        for _ in range(3):
            for mb in minibatches(buf, 32):
                loss = ppo_loss(net, value, log_std, mb)
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(params, 0.5)
                opt.step()
        print("iteration", it, "reward", round(float(buf["ret"].mean()), 4))
    print("FINITE" if all(torch.isfinite(p).all() for p in params) else "POISONED")


try:
    main()
except ValueError as e:
    print("stopped:", str(e).splitlines()[0][:70])
    print("POISONED")
