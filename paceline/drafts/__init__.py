"""Distilled drafts that come with the package, a directory each."""
