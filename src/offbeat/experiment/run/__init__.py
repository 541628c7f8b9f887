"""Execution of runs, and run folders."""
