"""Experiments as values, runs as folders, and what is read off them."""
