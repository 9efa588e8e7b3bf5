"""Optimisers whose state is plain arrays: a run can be saved after any step and resumed to the bit."""
