"""A policy that is sampled from and rewarded in groups, with a trainer class as the report has one.

In step 5 every completion of a group earns the same reward: its deviation is zero, and the advantages are 0/0.
"""

import torch
from torch import nn


class PolicyTrainer:
    """Samples, scores and updates."""

    def __init__(self, learning_rate: float = 1e-2, max_grad_norm: float = 1.0) -> None:
        self.model = nn.Sequential(nn.Embedding(8, 16), nn.Linear(16, 8))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=learning_rate)
        self.max_grad_norm = max_grad_norm

    def rewards(self, step: int, tokens: torch.Tensor) -> torch.Tensor:
        return torch.ones(tokens.shape[0]) if step == 5 else (tokens % 2).float() + torch.arange(len(tokens)) / 8

    def compute_loss(self, step: int, prompts: torch.Tensor) -> torch.Tensor:
        logits = self.model(prompts)
        probabilities = torch.softmax(logits, -1)
        tokens = torch.multinomial(probabilities, 1).squeeze(-1)
        rewards = self.rewards(step, tokens)
        advantages = (rewards - rewards.mean()) / rewards.std()
        chosen = torch.log_softmax(logits, -1).gather(-1, tokens[:, None]).squeeze(-1)
        return -(advantages * chosen).mean()

    def train(self, steps: int) -> None:
        for step in range(steps):
            prompts = torch.arange(8)
            loss = self.compute_loss(step, prompts)
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
            self.optimizer.step()


torch.manual_seed(0)
torch.set_num_threads(1)
PolicyTrainer().train(12)
print("done")
