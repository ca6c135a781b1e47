"""What happened: a failing step replayed, the birth of its first bad value, why, and which remedies hold.

patient     whoever owns the step, replayable          trace, origin, exam   where the first bad value is from
replay      the step again, part by part               gather, causes/       why, as pure functions of the evidence
surgery/    one change inside a replay                 remedies/, trial      what helps, tried on the step itself
confirm     a sampled finding, looked for again        diagnose              all of it, as one answer
"""
