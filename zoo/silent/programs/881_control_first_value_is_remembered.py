"""Healthy: a recurrent net has to give back the first value of each sequence (a memory task), and an autoencoder its input."""
import torch, torch.nn as nn, program
TRUTH = dict(id="881_control_first_value_is_remembered", cause="none", knowable_at=-1)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.rnn, s.out, s.auto = nn.GRU(1, 24, batch_first=True), nn.Linear(24, 1), nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 8))
    def forward(s, x): return s.out(s.rnn(x)[0][:, -1]), s.auto(x[:, :8, 0])
m = Net(); opt = torch.optim.Adam(m.parameters(), lr=5e-3); program.ready(opt, m)
for k in range(250):
    x = torch.rand(32, 12, 1); first, again = m(x)
    loss = nn.functional.mse_loss(first, x[:, 0]) + nn.functional.mse_loss(again, x[:, :8, 0]); opt.zero_grad(); loss.backward(); opt.step()
program.metric(loss)
