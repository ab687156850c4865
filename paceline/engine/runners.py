"""Which runner takes a loaded model's steps: its own decoder, CUDA's, stock modules or a table.

Chosen once, by the network's class, device and type of numbers. Knows no cache and no session.
"""

from __future__ import annotations

from paceline.engine.lean.cuda_runner import CudaRunner
from paceline.engine.lean.kernels import choose_kernels
from paceline.engine.lean.runner import LeanRunner
from paceline.engine.lean.weights import serves, serves_on_cuda, take_decoder
from paceline.engine.model_runner import NetworkRunner
from paceline.engine.models import LoadedModel
from paceline.engine.step import ModelRunner
from paceline.engine.table_model import TableModel, TableRunner


def build_runner(loaded: LoadedModel) -> ModelRunner:
    """A runner without a cache yet; it may use the network up."""
    network, size = loaded.network, loaded.identity.vocabulary_size
    if isinstance(network, TableModel):
        return TableRunner(network)
    if serves(network):
        return LeanRunner(take_decoder(network, choose_kernels(loaded.identity)), size)
    if serves_on_cuda(network):
        return CudaRunner(take_decoder(network, by_place=False), size)
    return NetworkRunner(network, size)
