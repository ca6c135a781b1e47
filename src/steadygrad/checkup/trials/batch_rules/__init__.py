"""The rules over one probed batch, one mistake a file: each has RULE, judge, SPECIMEN and NEAR_MISS."""
