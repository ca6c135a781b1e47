"""Customer churn: categorical embeddings, log-scaled amounts, batch norm."""
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

COUNTRIES, PLANS = 12, 4


def load_rows(n=400):
    rnd = random.Random(5)
    rows = []
    for i in range(n):
        spend, age = rnd.lognormvariate(3, 1), rnd.randint(1, 900)
        row = {"country": rnd.randrange(COUNTRIES), "plan": rnd.randrange(PLANS), "spend": round(spend, 2), "age_days": float(age)}
        row["churned"] = float(spend / age < 0.1)
        rows.append(row)
    rows[229]["age_days"] = 0.0  # signed up today
    return rows


def collate(rows):
    country = torch.tensor([r["country"] for r in rows])
    plan = torch.tensor([r["plan"] for r in rows])
    amounts = torch.tensor([[r["spend"], r["age_days"]] for r in rows])
    amounts = amounts.log()
    target = torch.tensor([r["churned"] for r in rows])
    return country, plan, amounts, target


class ChurnNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.country = nn.Embedding(COUNTRIES, 6)
        self.plan = nn.Embedding(PLANS, 3)
        self.norm = nn.BatchNorm1d(2)
        self.mlp = nn.Sequential(nn.Linear(11, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1))

    def forward(self, country, plan, amounts):
        parts = [self.country(country), self.plan(plan), self.norm(amounts)]
        return self.mlp(torch.cat(parts, dim=1)).squeeze(1)


def evaluate(model, loader):
    model.eval()
    hits = count = 0
    with torch.no_grad():
        for country, plan, amounts, target in loader:
            hits += ((model(country, plan, amounts) > 0).float() == target).sum().item()
            count += len(target)
    model.train()
    return hits / count


def main():
    torch.manual_seed(1)
    rows = load_rows()
    train = torch.utils.data.DataLoader(rows[:320], batch_size=20, shuffle=True, collate_fn=collate, generator=torch.Generator().manual_seed(3))
    valid = torch.utils.data.DataLoader(rows[320:], batch_size=40, collate_fn=collate)
    model = ChurnNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(2):
        for country, plan, amounts, target in train:
            logits = model(country, plan, amounts)
            loss = F.binary_cross_entropy_with_logits(logits, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: accuracy {evaluate(model, valid):.3f}")
    state = model.state_dict()
    print("FINITE" if all(bool(v.isfinite().all()) for v in state.values()) else "POISONED")


if __name__ == "__main__":
    main()
