"""Which rounds get a span, what goes over the wire, and what OpenTelemetry is told."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from paceline.errors import Exhausted
from paceline.serving.config import load
from paceline.serving.otel import OtelTracer
from paceline.serving.tracing import Untraced, is_sampled, traceparent_of
from verify_service.config import VerifyConfig

REMOTE = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
UNSAMPLED = REMOTE[:-1] + "0"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    """Keeps spans that have ended."""
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter: InMemorySpanExporter) -> Iterator[OtelTracer]:
    """A tracer that keeps every span and every second round."""
    tracer = OtelTracer("test", SimpleSpanProcessor(exporter), round_share=0.5)
    yield tracer
    tracer.close()


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    """The spans that have ended."""
    return {span.name: span for span in exporter.get_finished_spans()}


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.0, []), (0.25, [1, 5, 9]), (0.5, [1, 3, 5, 7, 9]), (1.0, list(range(1, 11)))],
)
def test_a_share_of_rounds_is_sampled_evenly(share: float, expected: list[int]) -> None:
    """The first is one of them, and the tiers choose alike without talking."""
    assert expected == [number for number in range(1, 11) if is_sampled(number, share)]


def test_the_context_of_a_call() -> None:
    """It is the header's; without one it is empty."""
    assert REMOTE == traceparent_of((("x-request-id", "1"), ("traceparent", REMOTE)))
    assert "" == traceparent_of((("x-request-id", "1"),)) == traceparent_of(None)


def test_spans_are_joined_by_the_header(tracer: OtelTracer, exporter: InMemorySpanExporter) -> None:
    """A span under a remote one has its trace and hands its own place on."""
    outer = tracer.start("outer", REMOTE, {"paceline.rule": "COUPLED"})
    inner = tracer.start("inner", outer.traceparent, {})
    inner.end()
    outer.end()
    spans = by_name(exporter)
    assert int(REMOTE.split("-")[1], 16) == spans["outer"].context.trace_id
    assert spans["outer"].parent is not None and spans["inner"].parent is not None
    assert int(REMOTE.split("-")[2], 16) == spans["outer"].parent.span_id
    assert spans["outer"].context.span_id == spans["inner"].parent.span_id
    assert spans["outer"].attributes == {"paceline.rule": "COUPLED"}
    assert {SpanKind.SERVER} == {span.kind for span in spans.values()}


def test_a_caller_that_does_not_trace_is_followed(
    tracer: OtelTracer, exporter: InMemorySpanExporter
) -> None:
    """The decision is the caller's, and goes on to the tiers."""
    span = tracer.start("outer", UNSAMPLED, {})
    assert span.traceparent.endswith("-00")
    span.round(1, 0.1, {})
    span.end()
    assert () == exporter.get_finished_spans()


def test_a_broken_header_begins_a_trace(tracer: OtelTracer, exporter: InMemorySpanExporter) -> None:
    """What cannot be read is passed over."""
    tracer.start("outer", "nonsense", {}).end()
    assert None is by_name(exporter)["outer"].parent


def test_rounds_lie_inside_their_session(
    tracer: OtelTracer, exporter: InMemorySpanExporter
) -> None:
    """A share of them, with their number, their facts and their length."""
    session = tracer.start("session", "", {})
    for number in range(1, 5):
        session.round(number, 0.25, {"paceline.accepted_tokens": number})
    session.end()
    rounds = [span for span in exporter.get_finished_spans() if span.name == "round"]
    assert [
        {"paceline.round": 1, "paceline.accepted_tokens": 1},
        {"paceline.round": 3, "paceline.accepted_tokens": 3},
    ] == [dict(span.attributes or {}) for span in rounds]
    for span in rounds:
        assert span.end_time is not None and span.start_time is not None
        assert 250_000_000 == span.end_time - span.start_time
        assert span.parent is not None
        assert by_name(exporter)["session"].context.span_id == span.parent.span_id


def test_an_error_is_named(tracer: OtelTracer, exporter: InMemorySpanExporter) -> None:
    """By its reason on the wire; a generator that is closed has not failed."""
    tracer.start("failed", "", {}).end(Exhausted("full", reason="SESSIONS_EXHAUSTED"))
    tracer.start("closed", "", {}).end(GeneratorExit())
    spans = by_name(exporter)
    assert {"error.type": "SESSIONS_EXHAUSTED"} == dict(spans["failed"].attributes or {})
    assert StatusCode.ERROR == spans["failed"].status.status_code
    assert StatusCode.UNSET == spans["closed"].status.status_code


def test_spans_reach_a_collector(collector: tuple[str, list[Any]]) -> None:
    """Over OTLP, with the service's name; what is left is handed over at the end."""
    address, requests = collector
    flags = ["--otlp-endpoint", address, "--trace-round-share", "1"]
    tracer = load(VerifyConfig, flags, {}).tracer()
    span = tracer.start("session", "", {})
    span.round(1, 0.1, {})
    span.end()
    tracer.close()
    (resource,) = (spans for request in requests for spans in request.resource_spans)
    attributes = {a.key: a.value.string_value for a in resource.resource.attributes}
    assert "paceline-verify" == attributes["service.name"]
    names = [span.name for scope in resource.scope_spans for span in scope.spans]
    assert ["round", "session"] == sorted(names)


def test_off_nothing_is_traced() -> None:
    """Without an endpoint there is no tracer, and no context goes out."""
    tracer = load(VerifyConfig, [], {}).tracer()
    assert isinstance(tracer, Untraced)
    span = tracer.start("session", REMOTE, {})
    assert "" == span.traceparent
    span.end()
    tracer.close()


def test_off_nothing_is_imported() -> None:
    """A process without traces does not even need the packages."""
    code = (
        "import sys, gateway.service; from paceline.serving.config import load\n"
        "from gateway.config import GatewayConfig\n"
        "load(GatewayConfig, ['--verify', 'a:1'], {}).tracer()\n"
        "print([m for m in sys.modules if m.startswith('opentelemetry')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "[]" == ran.stdout.strip()
