"""What `check` generates from: a few prompts that make drafts both right and wrong.

A model whose tokenizer cannot write them (a table model) gets fixed sequences of its own ids.
"""

from __future__ import annotations

import random
from dataclasses import replace

import grpc
import grpc.aio

from paceline.cli.client import GenerationOptions, Stub, chat_prompt, ids_prompt
from paceline.v1 import gateway_pb2, speculation_pb2

TEXTS = (
    "Write the numbers from one to ten in words, then once more.",
    "Why is the sky blue? Answer in two sentences.",
    "def add(a, b):\n    return a + b\n\nWrite the same function for subtraction.",
    "Repeat after me: the quick brown fox jumps over the lazy dog.",
)
NUM_IDS = 8
SEED = 1
WAYS = {
    "greedy": GenerationOptions(temperature=0.0),
    "seeded": GenerationOptions(temperature=0.8, top_p=0.95, seed=SEED, rule="coupled"),
}
"""How each prompt is sampled."""


async def probes(
    gateway: Stub, model: speculation_pb2.ModelIdentity, max_tokens: int
) -> dict[tuple[str, str], gateway_pb2.GenerateRequest]:
    """Requests by prompt, as printed, and way; each within the model's longest sequence."""
    requests = {}
    for number, text in enumerate(TEXTS):
        prompt = chat_prompt([("user", text)])
        try:
            ids = await _tokenize(gateway, model.name, prompt)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
                raise
            ids, text = _own_ids(model, number), f"ids of {model.name}, number {number}"
        room = model.max_length - len(ids)
        if room < 1:
            continue
        for way, options in WAYS.items():
            request = replace(options, model=model.name).request(ids_prompt(ids))
            request.max_tokens = min(max_tokens, room)
            requests[text, way] = request
    return requests


async def _tokenize(gateway: Stub, model: str, prompt: gateway_pb2.Prompt) -> list[int]:
    answer = await gateway.Tokenize(gateway_pb2.TokenizeRequest(model=model, prompt=prompt))
    return list(answer.token_ids)


def _own_ids(model: speculation_pb2.ModelIdentity, number: int) -> list[int]:
    """A fixed sequence of the model's ids, none of which ends a generation."""
    ends = set(model.eos_token_ids)
    ids = [i for i in range(model.vocabulary_size) if i not in ends]
    return random.Random(SEED + number).choices(ids, k=NUM_IDS)
