"""Whether a process has lost its device. What was running there is not known here."""

from __future__ import annotations

import torch


def is_device_lost(error: Exception) -> bool:
    """Whether every later call to the device would fail like the one that raised this error.

    After an illegal access or a fault of the hardware nothing works until the process is another
    one; a launch that was refused leaves the device as it was.
    """
    if not isinstance(error, torch.AcceleratorError):
        return False
    try:
        torch.accelerator.synchronize()
    except RuntimeError:
        return True
    return False
