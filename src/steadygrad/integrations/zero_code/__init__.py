"""`steady run`: a training program guarded without a changed line.

`supervise` starts the program with an environment in which every Python process first runs
`bootstrap/sitecustomize.py`. That waits for torch to be imported and then lets a `Watch` listen at the places every
training loop passes through: a model's call, `backward`, clipping, `optimizer.step`, the schedule.
"""
