"""Tensor mathematics only: no clock, files, network, devices or global random state."""
