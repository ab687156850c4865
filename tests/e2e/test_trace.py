"""One generation is one trace: the spans of all three processes, as a collector gets them."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from paceline.v1 import gateway_pb2, gateway_pb2_grpc

pytestmark = pytest.mark.e2e
SERVICES = ("gateway", "draft", "verify")
CALLER = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
Export = trace_service_pb2.ExportTraceServiceRequest


def spans_of(requests: list[Export]) -> dict[str, list[Any]]:
    """What was sent, by the name of the service."""
    spans: dict[str, list[Any]] = {}
    for resource in (resource for request in requests for resource in request.resource_spans):
        attributes = {one.key: one.value.string_value for one in resource.resource.attributes}
        found = spans.setdefault(attributes["service.name"], [])
        found += [span for scope in resource.scope_spans for span in scope.spans]
    return spans


def number(span: Any) -> int:
    """The number of the round that a span tells of."""
    (found,) = [one.value.int_value for one in span.attributes if one.key == "paceline.round"]
    return int(found)


def test_spans_of_all_tiers_are_joined(
    start_pair: Callable[..., Any],
    collector: tuple[str, list[Export]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The caller's trace holds the generation, under it both sessions, under each its rounds."""
    endpoint, requests = collector
    for service in SERVICES:
        monkeypatch.setenv(f"PACELINE_{service.upper()}_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv(f"PACELINE_{service.upper()}_TRACE_ROUND_SHARE", "1")
    running = start_pair()
    asked = gateway_pb2.GenerateRequest(prompt=gateway_pb2.Prompt(text="abc"), max_tokens=12)
    with grpc.insecure_channel(running.address) as channel:
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        events = list(stub.Generate(asked, timeout=60, metadata=(("traceparent", CALLER),)))
    stats = events[-1].finished.stats
    num_rounds = stats.round_count + stats.plain_round_count
    running.process.send_signal(signal.SIGTERM)  # what a service has not sent yet, it sends now
    running.process.wait(120)

    spans = spans_of(requests)
    trace, caller = (bytes.fromhex(part) for part in CALLER.split("-")[1:3])
    assert {f"paceline-{service}" for service in SERVICES} == spans.keys()
    assert {trace} == {span.trace_id for found in spans.values() for span in found}
    outer = {
        service: next(span for span in spans[f"paceline-{service}"] if span.name != "round")
        for service in SERVICES
    }
    generation = outer["gateway"]
    assert caller == generation.parent_span_id
    assert generation.span_id == outer["draft"].parent_span_id == outer["verify"].parent_span_id
    numbers = {}
    for service in SERVICES:
        inner = [span for span in spans[f"paceline-{service}"] if span.name == "round"]
        assert {outer[service].span_id} == {span.parent_span_id for span in inner}
        numbers[service] = sorted(number(span) for span in inner)
    assert list(range(1, num_rounds + 1)) == numbers["gateway"] == numbers["verify"]
    assert numbers["draft"] and set(numbers["draft"]) < set(numbers["gateway"])
