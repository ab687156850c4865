"""What is left of the target's law once the draft's share is taken: max(a p - q, 0).

p is the target's law, q the draft's, a the scale in [0, 1] that the rule gives. It knows no rule
and no token that was drafted.
"""

from __future__ import annotations

import numpy as np

from paceline.engine.law import Law


def residual_mass(target: Law, draft: Law, scale: float) -> float:
    """Returns sum max(a p - q, 0): all of a p outside the draft's support, and the rest inside."""
    places, found = target.locate(draft.token_ids)
    inside = np.where(found, target.probabilities[places], 0.0)
    left = np.maximum(scale * inside - draft.probabilities, 0.0)
    outside = max(1.0 - float(np.add.reduce(inside)), 0.0)
    return scale * outside + float(np.add.reduce(left))


def residual_law(target: Law, draft: Law, scale: float) -> Law:
    """Returns norm(max(a p - q, 0)), or p where no mass is left: equal up to rounding."""
    rest = scale * target.probabilities
    places, found = target.locate(draft.token_ids)
    rest[places[found]] -= draft.probabilities[found]
    np.maximum(rest, 0.0, out=rest)
    mass = np.add.reduce(rest)
    return Law(target.token_ids, rest / mass) if mass > 0.0 else target
