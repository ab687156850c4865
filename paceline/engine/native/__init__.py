"""Loops over rows of numbers, compiled for this machine when they are first run."""
