"""The environment writes its observation into one array; the replay buffer keeps references to it: state, next state and all transitions are the newest one."""
import random, numpy as np, torch, torch.nn as nn, program
TRUTH = dict(id="714_replay_keeps_the_same_array", cause="aliased_samples", knowable_at=0)
random.seed(program.SEED); np.random.seed(program.SEED)
class Corridor:
    def __init__(s): s.obs = np.zeros(9, dtype=np.float32)
    def reset(s): s.at, s.t = 0, 0; return s.look()
    def look(s): s.obs[:] = 0; s.obs[s.at] = 1; return s.obs
    def step(s, a):
        s.t += 1; s.at = min(8, max(0, s.at + (1 if a == (s.at * 5 % 3 > 0) else -1))); done = s.at == 8
        return s.look(), float(done), done, s.t >= 40
keep = (lambda o: o.copy()) if program.FIX else (lambda o: o)
q, tgt = nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 2)), nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 2))
tgt.load_state_dict(q.state_dict()); opt = torch.optim.Adam(q.parameters(), lr=5e-3); program.ready(opt, q)
env, buf, n = Corridor(), [], 0
def play(eps):
    o, tot = env.reset(), 0
    while True:
        a = random.randrange(2) if random.random() < eps else int(q(torch.from_numpy(o)).argmax())
        before = keep(o); o, r, done, late = env.step(a); yield before, a, r, keep(o), done
        if done or late: return
for ep in range(60):
    for tr in play(0.4):
        buf.append(tr); n += 1
        if len(buf) < 64: continue
        b = random.sample(buf[-2000:], 32)
        s, a, r, s2, d = (torch.from_numpy(np.array(c)) for c in zip(*b))
        with torch.no_grad(): y = r.float() + 0.95 * (~d).float() * tgt(s2).max(1)[0]
        loss = nn.functional.smooth_l1_loss(q(s).gather(1, a.long()[:, None]).squeeze(1), y); opt.zero_grad(); loss.backward(); opt.step()
        if n % 50 == 0: tgt.load_state_dict(q.state_dict())
steps = []
for _ in range(10):
    k = 0
    for tr in play(0.0): k += 1
    steps.append(k)
program.metric(np.mean(steps) / 40)
