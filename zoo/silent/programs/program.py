"""What the programs share. From the environment: SEED, FIX=1 for the corrected program, ATTACH=1 for `sg.attach`."""
import atexit, json, os, torch
SEED, FIX, ATTACH = int(os.environ.get("SEED", "0")), os.environ.get("FIX") == "1", os.environ.get("ATTACH") == "1"
torch.manual_seed(SEED)
def ready(opt, model):
    if not ATTACH: return
    import steadygrad as sg
    g = sg.attach(opt, model=model)
    def end():
        g.close()
        print("ANSWER", json.dumps({"named": [(i.first_step, i.diagnosis.cause.slug) for i in g.incidents if i.diagnosis and i.diagnosis.cause], "warned": [(v.step, v.slug) for v in g.vitals], "faults": g.summary()["guard_faults"]}))
    atexit.register(end)
def blobs(n, seed, d=12, k=4, noise=1.0):
    c = torch.randn(k, d, generator=torch.Generator().manual_seed(7))
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, k, (n,), generator=g)
    return c[y] + noise * torch.randn(n, d, generator=g), y
def metric(v): print(f"METRIC {float(v):.4f}")
