"""Regimes whose loss level says little of how well they train: the targets, the rival or the objective moves along."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..blocks import classified, cross_entropy, endless, perceptron
from ..training import Training, seeded, single


def bootstrapped_values(seed: int) -> Training:
    """Values learnt from their own estimate of the next state, without a copy: the loss grows with the values."""
    g, model = seeded(seed), perceptron(6, 32, 4, between=nn.ReLU)

    def batch(k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        states, actions = torch.randn(24, 6, generator=g), torch.randint(4, (24,), generator=g)
        following = 0.9 * states + 0.3 * torch.randn(24, 6, generator=g) + 0.1 * actions[:, None]
        return states, actions, 1.0 + states[:, 0] * actions, following

    def loss(model: nn.Module, batch: Any) -> Tensor:
        states, actions, rewards, following = batch
        with torch.no_grad():
            wanted = rewards + 0.99 * model(following).max(1).values
        return F.mse_loss(model(states).gather(1, actions[:, None])[:, 0], wanted)

    return single(model, torch.optim.Adam(model.parameters(), lr=3e-3), loss, endless(batch))


def seldom_copied_target(seed: int) -> Training:
    """Double Q-learning against a copy replaced every 200 updates: each copy raises the targets and the loss."""
    g, model = seeded(seed), perceptron(6, 32, 4, between=nn.ReLU)
    target = copy.deepcopy(model).requires_grad_(False)

    def batch(k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        states, actions = torch.randn(24, 6, generator=g), torch.randint(4, (24,), generator=g)
        return states, actions, 1.0 + states[:, 0] * actions, states + 0.3 * torch.randn(24, 6, generator=g)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        states, actions, rewards, following = batch
        with torch.no_grad():
            best = model(following).argmax(1, keepdim=True)
            wanted = rewards + 0.98 * target(following).gather(1, best)[:, 0]
        return F.mse_loss(model(states).gather(1, actions[:, None])[:, 0], wanted)

    def after(step: int) -> None:
        if step % 200 == 199:
            target.load_state_dict(model.state_dict())

    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    return single(model, optimizer, loss, endless(batch), after=after)


def played_out_in_the_loss(seed: int) -> Training:
    """An actor and a critic; the loss plays the game with the policy of now, so better play means larger returns."""
    g, model = seeded(seed), perceptron(4, 32, 4, between=nn.Tanh)
    force = torch.tensor([-1.0, 0.0, 1.0])

    def loss(model: nn.Module, start: Tensor) -> Tensor:
        states, logs, values, rewards = start, [], [], []
        for _ in range(6):
            out = model(states)
            policy = torch.distributions.Categorical(logits=out[:, :3])
            action = policy.sample()
            logs.append(policy.log_prob(action))
            values.append(out[:, 3])
            states = 0.9 * states + 0.2 * force[action][:, None]
            rewards.append(5.0 * states[:, 0].detach())
        total, terms = torch.zeros(len(start)), []
        for log, value, reward in zip(reversed(logs), reversed(values), reversed(rewards), strict=True):
            total = reward + 0.95 * total
            gain = total - value
            terms.append(-(log * gain.detach()).mean() + 0.5 * gain.square().mean())
        return torch.stack(terms).mean()

    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return single(model, optimizer, loss, endless(lambda k: torch.randn(16, 4, generator=g)), clip=5.0)


def soft_actor_critic(seed: int) -> Training:
    """A critic, a policy and a learned temperature in one loss, each with what it must not move held fixed."""
    g = seeded(seed)
    model = nn.ModuleDict({"critic": perceptron(6, 32, 1, between=nn.ReLU), "policy": perceptron(4, 32, 4)})
    model["temperature"] = nn.ParameterList([nn.Parameter(torch.zeros(()))])
    slow = copy.deepcopy(model["critic"]).requires_grad_(False)

    def act(states: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, width = model["policy"](states).chunk(2, -1)
        width = width.clamp(-4, 1)
        raw = mean + width.exp() * noise
        action = raw.tanh()
        log = -0.5 * noise.square() - width - torch.log1p(-action.square() + 1e-6)
        return action, log.sum(-1)

    def batch(k: int) -> tuple[Tensor, ...]:
        states, actions = torch.randn(24, 4, generator=g), 2 * torch.rand(24, 2, generator=g) - 1
        rewards = 2.0 - (states[:, :2] - actions).square().sum(-1)
        following = 0.9 * states + 0.2 * torch.randn(24, 4, generator=g)
        return states, actions, rewards, following, torch.randn(24, 2, generator=g)

    def loss(model: Any, batch: Any) -> Tensor:
        states, actions, rewards, following, noise = batch
        (log_weight,) = model["temperature"]
        weight = log_weight.exp()
        with torch.no_grad():
            then, log = act(following, noise)
            wanted = rewards + 0.97 * (slow(torch.cat([following, then], -1))[:, 0] - weight * log)
        critic = F.mse_loss(model["critic"](torch.cat([states, actions], -1))[:, 0], wanted)
        action, log = act(states, noise)
        frozen = {name: value.detach() for name, value in model["critic"].named_parameters()}
        judged = torch.func.functional_call(model["critic"], frozen, (torch.cat([states, action], -1),))[:, 0]
        return critic + (weight.detach() * log - judged).mean() - (log_weight * (log.detach() - 2.0)).mean()

    def after(step: int) -> None:
        with torch.no_grad():
            for mine, theirs in zip(slow.parameters(), model["critic"].parameters(), strict=True):
                mine.lerp_(theirs, 0.02)

    return single(model, torch.optim.Adam(model.parameters(), lr=3e-3), loss, endless(batch), after=after)


def growing_adversary(seed: int) -> Training:
    """Adversarial training whose attack grows stronger: clean at first, half of the margin at the end."""
    g, model = seeded(seed), perceptron(8, 48, 2, between=nn.ReLU)
    strength = [0.0]

    def batch(k: int) -> tuple[Tensor, Tensor]:
        points = torch.randn(32, 8, generator=g)
        return points, (points[:, 0] * points[:, 1] > 0).long()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        points, labels = batch
        watched = points.clone().requires_grad_()
        (slope,) = torch.autograd.grad(F.cross_entropy(model(watched), labels), watched)
        return F.cross_entropy(model(points + strength[0] * slope.sign()), labels)

    def before(step: int) -> None:
        strength[0] = min(1.5, step / 1000)

    return single(model, torch.optim.Adam(model.parameters(), lr=1e-2), loss, endless(batch), before=before)


def growing_adversary_in_the_batch(seed: int) -> Training:
    """The same with the strength of the attack as a part of each batch, and several steps of attack."""
    g, model = seeded(seed), perceptron(8, 48, 2, between=nn.ReLU)

    def batch(k: int) -> tuple[Tensor, Tensor, float]:
        points = torch.randn(32, 8, generator=g)
        return points, (points[:, 0] * points[:, 1] > 0).long(), min(1.0, k / 800)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        points, labels, strength = batch
        attacked = points
        for _ in range(3):
            watched = attacked.detach().requires_grad_()
            (slope,) = torch.autograd.grad(F.cross_entropy(model(watched), labels), watched)
            attacked = attacked.detach() + strength / 3 * slope.sign()
        return F.cross_entropy(model(attacked), labels)

    return single(model, torch.optim.Adam(model.parameters(), lr=1e-2), loss, endless(batch))


def growing_penalty(seed: int) -> Training:
    """A penalty on the weights that grows tenfold every 300 updates, until few weights are left."""
    g, model, weight = seeded(seed), perceptron(10, 32, 3), [1e-5]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        sizes = torch.stack([parameter.abs().sum() for parameter in model.parameters()])
        return cross_entropy(model, batch) + weight[0] * sizes.sum()

    def before(step: int) -> None:
        weight[0] = 1e-5 * 10.0 ** (step // 300)

    batches = endless(lambda k: classified(g, 32, 10, 3))
    return single(model, torch.optim.Adam(model.parameters(), lr=3e-3), loss, batches, before=before)


class _Reversed(torch.autograd.Function):
    """The identity, with the gradient's sign turned."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return -3.0 * grad


def reversed_gradient(seed: int) -> Training:
    """A trunk learns to fool the head that tells two domains apart: its gradient is turned around on the way."""
    g = seeded(seed)
    model = nn.ModuleDict({"trunk": perceptron(8, 32, 16), "label": perceptron(16, 3), "domain": perceptron(16, 16, 2)})

    def batch(k: int) -> tuple[Tensor, Tensor, Tensor]:
        points, labels = classified(g, 32, 8, 3)
        domain = torch.arange(32) % 2
        return points + 2.0 * domain[:, None], labels, domain

    def loss(model: Any, batch: Any) -> Tensor:
        points, labels, domain = batch
        seen = model["trunk"](points)
        told = F.cross_entropy(model["domain"](_Reversed.apply(seen)), domain)
        return F.cross_entropy(model["label"](seen), labels) + told

    return single(model, torch.optim.Adam(model.parameters(), lr=3e-3), loss, endless(batch))


def two_players_in_one_loss(seed: int) -> Training:
    """A GAN whose two losses are added, each with the other player held fixed, under two optimizers."""
    g = seeded(seed)
    model = nn.ModuleDict({"maker": perceptron(4, 32, 2), "judge": perceptron(2, 32, 1, between=nn.ReLU)})

    def batch(k: int) -> tuple[Tensor, Tensor]:
        angle = 6.2832 * torch.rand(32, generator=g)
        real = torch.stack([angle.cos(), angle.sin()], -1) + 0.05 * torch.randn(32, 2, generator=g)
        return real, torch.randn(32, 4, generator=g)

    def loss(model: Any, batch: Any) -> Tensor:
        real, noise = batch
        made = model["maker"](noise)
        judged = F.softplus(-model["judge"](real)).mean() + F.softplus(model["judge"](made.detach())).mean()
        frozen = {name: value.detach() for name, value in model["judge"].named_parameters()}
        return judged + F.softplus(-torch.func.functional_call(model["judge"], frozen, (made,))).mean()

    judge = torch.optim.Adam(model["judge"].parameters(), lr=1e-3, betas=(0.5, 0.99))
    maker = torch.optim.Adam(model["maker"].parameters(), lr=1e-3, betas=(0.5, 0.99))
    return single(model, [judge, maker], loss, endless(batch))


def slow_teacher(seed: int) -> Training:
    """Two views of a point agree; one is seen by a slow average of the network: the loss says nothing in itself."""
    g, model = seeded(seed), nn.Sequential(perceptron(8, 32, 16, between=nn.ReLU), perceptron(16, 32, 16))
    slow = copy.deepcopy(model[0]).requires_grad_(False)

    def batch(k: int) -> tuple[Tensor, Tensor]:
        points = torch.randn(32, 8, generator=g)
        return points + 0.1 * torch.randn(32, 8, generator=g), points + 0.1 * torch.randn(32, 8, generator=g)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        one, other = batch
        with torch.no_grad():
            wanted = 20.0 * slow(other)  # not normalised: the level follows the size of the features
        return F.mse_loss(model(one), wanted)

    def after(step: int) -> None:
        with torch.no_grad():
            for mine, theirs in zip(slow.parameters(), model[0].parameters(), strict=True):
                mine.lerp_(theirs, 0.01)

    return single(model, torch.optim.Adam(model.parameters(), lr=2e-3), loss, endless(batch), after=after)


def energy_against_samples(seed: int) -> Training:
    """An energy: low for data, high for samples that are drawn in the loss by following the energy downhill."""
    g, model = seeded(seed), perceptron(2, 48, 1, between=nn.SiLU)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        data, samples = batch
        for _ in range(8):
            watched = samples.detach().requires_grad_()
            (slope,) = torch.autograd.grad(model(watched).sum(), watched)
            samples = watched.detach() - 0.3 * slope + 0.1 * torch.randn_like(samples)
        low, high = model(data), model(samples.detach())
        return (low - high).mean() + 0.02 * (low.square() + high.square()).mean()

    def batch(k: int) -> tuple[Tensor, Tensor]:
        data = torch.randn(32, 2, generator=g) * 0.2 + torch.sign(torch.randn(32, 2, generator=g))
        return data, 4.0 * torch.rand(32, 2, generator=g) - 2.0

    return single(model, torch.optim.Adam(model.parameters(), lr=2e-3), loss, endless(batch))


def straight_through_codes(seed: int) -> Training:
    """Codes from a table, with the gradient passed straight through; the weight of the commitment grows."""
    g = seeded(seed)
    model = nn.ModuleDict(
        {"encode": perceptron(8, 32, 4), "table": nn.Embedding(16, 4), "decode": perceptron(4, 32, 8)}
    )
    weight = [0.1]

    def loss(model: Any, points: Tensor) -> Tensor:
        z = model["encode"](points)
        code = model["table"](torch.cdist(z, model["table"].weight).argmin(1))
        out = model["decode"](z + (code - z).detach())
        return F.mse_loss(out, points) + F.mse_loss(code, z.detach()) + weight[0] * F.mse_loss(z, code.detach())

    def before(step: int) -> None:
        weight[0] = 0.1 * 2.0 ** (step // 150)

    mix = torch.randn(3, 8, generator=g)
    batches = endless(lambda k: torch.randn(32, 3, generator=g) @ mix)
    return single(model, torch.optim.Adam(model.parameters(), lr=3e-3), loss, batches, before=before)


def sharper_softmax(seed: int) -> Training:
    """Contrastive learning whose temperature falls a hundredfold: the loss rises and its gradients grow."""
    g, model, heat = seeded(seed), perceptron(8, 32, 8), [1.0]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        one, other = (F.normalize(model(view), dim=-1) for view in batch)
        return F.cross_entropy(one @ other.T / heat[0], torch.arange(len(one)))

    def batch(k: int) -> tuple[Tensor, Tensor]:
        points = torch.randn(24, 8, generator=g)
        return points + 0.6 * torch.randn(24, 8, generator=g), points + 0.6 * torch.randn(24, 8, generator=g)

    def before(step: int) -> None:
        heat[0] = max(0.01, 0.996**step)

    return single(model, torch.optim.AdamW(model.parameters(), lr=3e-3), loss, endless(batch), before=before)


def ever_more_candidates(seed: int) -> Training:
    """Retrieval among 4, 8, 16 and at last 256 candidates, and labels that are ever more often wrong."""
    g, model = seeded(seed), perceptron(8, 32, 8)

    def batch(k: int) -> tuple[Tensor, Tensor, Tensor]:
        rows = 4 * 2 ** min(6, k // 150)
        points = torch.randn(rows, 8, generator=g)
        wrong = torch.rand(rows, generator=g) < min(0.5, k / 2000)
        labels = torch.where(wrong, torch.randint(rows, (rows,), generator=g), torch.arange(rows))
        return points, points + 0.3 * torch.randn(rows, 8, generator=g), labels

    def loss(model: nn.Module, batch: Any) -> Tensor:
        one, other, labels = batch
        return F.cross_entropy(model(one) @ model(other).T / 3.0, labels)

    return single(model, torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9), loss, endless(batch), clip=1.0)


def pressed_to_a_prior(seed: int) -> Training:
    """A variational autoencoder: fits freely at first, then its code is pressed ever harder to the prior."""
    g, weight = seeded(seed), [0.0]
    model = nn.ModuleDict({"encode": perceptron(8, 32, 6), "decode": perceptron(3, 32, 8)})

    def loss(model: Any, points: Tensor) -> Tensor:
        mean, width = model["encode"](points).chunk(2, -1)
        width = width.clamp(-8, 4)
        out = model["decode"](mean + torch.exp(0.5 * width) * torch.randn_like(mean))
        pressed = 0.5 * (mean.square() + width.exp() - 1.0 - width).sum(-1).mean()
        return (out - points).square().sum(-1).mean() + weight[0] * pressed

    def before(step: int) -> None:
        weight[0] = 0.0 if step < 300 else min(20.0, (step - 300) / 40)

    mix = torch.randn(3, 8, generator=g)
    batches = endless(lambda k: torch.randn(32, 3, generator=g) @ mix)
    return single(model, torch.optim.Adam(model.parameters(), lr=3e-3), loss, batches, before=before)


def against_itself(seed: int) -> Training:
    """A zero-sum game against the own policy of now: better play on both sides leaves the loss where it was."""
    g, model = seeded(seed), perceptron(3, 24, 3)
    payoff = torch.tensor([[0.0, -1.0, 2.0], [1.0, 0.0, -1.0], [-2.0, 1.0, 0.0]])

    def loss(model: nn.Module, states: Tensor) -> Tensor:
        mine = model(states).softmax(-1)
        theirs = mine.detach().roll(1, 0)
        gains = torch.einsum("bi,ij,bj->b", mine, payoff, theirs)
        entropy = -(mine * mine.clamp(min=1e-9).log()).sum(-1)
        return -(10.0 * gains + 0.05 * entropy).mean()

    batches = endless(lambda k: torch.randn(24, 3, generator=g))
    return single(model, torch.optim.Adam(model.parameters(), lr=5e-3), loss, batches)
