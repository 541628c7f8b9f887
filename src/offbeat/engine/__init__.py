"""Engines that drive strategies in virtual and in wall-clock time."""
