"""The contract between engines and strategies, and the strategies themselves.

This package is pure computation: it uses no clock, files, network, devices or global random state.
"""
