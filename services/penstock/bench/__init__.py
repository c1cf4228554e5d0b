"""Measurements: a runner of experiments over real processes. `experiment.py` says what one is."""
