"""A client of the gateway: text as it comes, a refusal with its details, a deadline.

`python client.py [HOST:PORT [PROMPT]]`, in an environment with the package `paceline`, which needs
no torch, or with modules that you generate yourself from `protos/`. The variable PACELINE_CA names
a PEM file of authorities and turns TLS on, PACELINE_TOKEN holds an access token.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from paceline.v1 import gateway_pb2 as pb
from paceline.v1 import gateway_pb2_grpc, speculation_pb2

GREEDY = speculation_pb2.SamplingParams(temperature=0)
TOKEN = os.environ.get("PACELINE_TOKEN")
METADATA = (("authorization", f"Bearer {TOKEN}"),) if TOKEN else ()


def open_channel(address: str) -> grpc.Channel:
    """A channel, in plaintext unless there are authorities to believe."""
    ca = os.environ.get("PACELINE_CA")
    if not ca:
        return grpc.insecure_channel(address)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(Path(ca).read_bytes()))


def print_text(gateway: gateway_pb2_grpc.GatewayServiceStub, prompt: pb.Prompt) -> None:
    """Streams one generation, piece by piece, then its figures."""
    request = pb.GenerateRequest(prompt=prompt, sampling=GREEDY, max_tokens=32)
    for event in gateway.Generate(request, timeout=60, metadata=METADATA):
        match event.WhichOneof("event"):
            case "tokens":
                print(event.tokens.text, end="", flush=True)
            case "finished":
                usage, stats = event.finished.usage, event.finished.stats
                print(f"\n{usage.completion_token_count} tokens in {stats.round_count} rounds")


def print_refusal(gateway: gateway_pb2_grpc.GatewayServiceStub, prompt: pb.Prompt) -> None:
    """Asks for something that cannot be: the status says what and why."""
    sampling = speculation_pb2.SamplingParams(temperature=-1)
    refused = pb.GenerateRequest(prompt=prompt, sampling=sampling)
    try:
        whole = pb.CompleteRequest(generation=refused)
        gateway.Complete(whole, timeout=60, metadata=METADATA)
    except grpc.RpcError as error:
        print(f"{error.code().name}: {error.details()}")
        # A deadline or a lost connection has no details.
        status = rpc_status.from_call(error)
        for detail in status.details if status else ():
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info):
                print(f"{info.domain} {info.reason} {dict(info.metadata)}")


def print_deadline(gateway: gateway_pb2_grpc.GatewayServiceStub, prompt: pb.Prompt) -> None:
    """Lets a deadline pass: both tiers stop working on it, and what came before it is valid."""
    request = pb.GenerateRequest(prompt=prompt, sampling=GREEDY)
    request.sampling.ignore_eos = True
    num_tokens = 0
    try:
        for event in gateway.Generate(request, timeout=0.5, metadata=METADATA):
            num_tokens += len(event.tokens.token_ids)
    except grpc.RpcError as error:
        print(f"{error.code().name} after {num_tokens} tokens")


def main() -> None:
    """All three, one after another, on one channel."""
    defaults = ("127.0.0.1:50051", "Name three rivers in Europe.")
    address, text = (*sys.argv[1:], *defaults[len(sys.argv) - 1 :])
    with open_channel(address) as channel:
        gateway = gateway_pb2_grpc.GatewayServiceStub(channel)
        prompt = pb.Prompt(chat=pb.Chat(messages=[pb.ChatMessage(role="user", content=text)]))
        print_text(gateway, prompt)
        print_refusal(gateway, prompt)
        print_deadline(gateway, prompt)


if __name__ == "__main__":
    main()
