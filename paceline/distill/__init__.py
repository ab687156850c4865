"""Makes a draft from a target: its own text with its own laws, and a few of its layers to learn."""
