"""Engines own time, randomness, devices, files and the network. They are handed callables and import no scenario."""
