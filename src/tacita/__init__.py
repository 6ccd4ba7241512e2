"""tacita: differentially private training in PyTorch whose epsilon can be trusted.

One idea holds it together: a private gradient oracle with a line through it. Raw data only inside, ordinary
optimization outside, the ledger on the line.
"""
