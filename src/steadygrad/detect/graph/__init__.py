"""Silent errors that one look at a loss's autograd graph, or at the live model and optimizers, shows.

`examine_graph` walks the graph of a loss once, before backward, and asks the rules; `examine_setup` asks those that
need model and optimizers alone. One rule a file in `rules/`; each has RULE, judge, SPECIMEN and NEAR_MISS.
"""
