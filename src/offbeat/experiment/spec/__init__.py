"""Experiment files and the choices that they name."""
