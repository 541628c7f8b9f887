"""Runs that a script defines with its own model and data."""
