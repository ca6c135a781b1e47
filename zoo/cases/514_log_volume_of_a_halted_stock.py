"""np.log(volume) was taken in preprocessing; a stock whose trading was halted has volume 0 and after z-scoring (-inf minus -inf) its whole window is NaN."""
import torch
import torch.nn as nn
from protocol import Case

TRUTH = dict(id="514_log_volume_of_a_halted_stock", source="written for this set, after a kind of report often seen: log returns",
             symptom="nan_loss", phase="data", cause="bad_input", op=None, module=None, module_also=["lstm"], line_marker=None, input_key="log_volume",
             first_bad_step=4, bad_rows=[5], fixes_that_work=["clean", "skip_batch", "drop_rows"], fixes_that_do_not=["clip", "lr_down", "zero_nan_grads"])
FIXES = {"clean"}


class Trader(nn.Module):
    def __init__(self):
        super().__init__()
        self.ticker = nn.Embedding(12, 4)
        self.lstm = nn.LSTM(2 + 4, 10, batch_first=True)
        self.fc = nn.Linear(10, 1)

    def forward(self, returns, log_volume, ticker):
        t = self.ticker(ticker).unsqueeze(1).expand(-1, returns.shape[1], -1)
        seq = torch.cat((returns.unsqueeze(-1), log_volume.unsqueeze(-1), t), -1)
        out, _ = self.lstm(seq)
        return self.fc(out[:, -1]).squeeze(-1)


def train_loss(model, batch):
    y = batch.get("next_return")
    return nn.MSELoss()(model(batch["returns"], batch["log_volume"], batch["ticker"]), y)


def make(seed=0, fix=None):
    torch.manual_seed(seed)
    model = Trader()
    batches = []
    for i in range(9):
        volume = torch.randint(1, 1000, (7, 9)).float()
        if i == 4:
            volume[5, 3:6] = 0
        lv = volume.log()
        if fix == "clean":
            lv = lv.clamp(min=-1)
        lv = (lv - lv.mean(1, keepdim=True)) / lv.std(1, keepdim=True)
        r = torch.randn(7, 9) * 0.02
        batches.append({"returns": r, "log_volume": lv, "ticker": torch.randint(0, 12, (7,)), "next_return": torch.randn(7) * 0.02})
    return Case(model, train_loss, batches, torch.optim.Adam(model.parameters(), lr=1e-3))
