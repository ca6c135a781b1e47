"""`sg.attach(optimizer)`: a loop that is seen at `optimizer.step()` only."""
