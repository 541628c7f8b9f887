"""Summaries of traces: metrics, measures and statistics over seeds."""
