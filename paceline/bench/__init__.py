"""Measurements of a running system, and of what else one could run instead."""
