"""Spans through OpenTelemetry. Imported only where traces are on."""

from __future__ import annotations

import time

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from paceline.errors import PacelineError
from paceline.serving.tracing import TRACEPARENT_KEY, Attributes, is_sampled

# What a service's end waits for a collector that is away.
_TIMEOUT_S = 2.0
_PROPAGATOR = TraceContextTextMapPropagator()


def open_otlp(service: str, endpoint: str, share: float, round_share: float) -> OtelTracer:
    """A tracer that sends its spans to a collector, in the background.

    Args:
        service: Name of the service in the traces.
        endpoint: OTLP over gRPC, http://HOST:PORT or https://HOST:PORT.
        share: Of calls that come without a trace of their own.
        round_share: Of the rounds of a traced session.
    """
    exporter = OTLPSpanExporter(
        endpoint=endpoint, insecure=not endpoint.startswith("https:"), timeout=_TIMEOUT_S
    )
    return OtelTracer(service, BatchSpanProcessor(exporter), share, round_share)


class OtelTracer:
    """A tracer of its own provider: nothing global is set."""

    def __init__(
        self, service: str, processor: SpanProcessor, share: float = 1.0, round_share: float = 1.0
    ) -> None:
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(share)),
            resource=Resource.create({SERVICE_NAME: service}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("paceline")
        self._round_share = round_share

    def start(self, name: str, traceparent: str, attributes: Attributes) -> OtelSpan:
        """Begins a span of this server, under a parent where one is given."""
        context = _PROPAGATOR.extract({TRACEPARENT_KEY: traceparent} if traceparent else {})
        span = self._tracer.start_span(name, context, SpanKind.SERVER, attributes)
        return OtelSpan(self, span)

    def start_round(self, parent: Span, number: int, begin_ns: int, attributes: Attributes) -> Span:
        """Begins a round that has already ended."""
        context = set_span_in_context(parent)
        told = {"paceline.round": number, **attributes}
        return self._tracer.start_span("round", context, attributes=told, start_time=begin_ns)

    def keeps(self, number: int) -> bool:
        """Whether the round of that number gets a span."""
        return is_sampled(number, self._round_share)

    def close(self) -> None:
        """Hands over what is left; blocks."""
        self._provider.shutdown()


class OtelSpan:
    """A generation or a session while it runs."""

    def __init__(self, tracer: OtelTracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span

    @property
    def traceparent(self) -> str:
        """Its context as W3C text."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, set_span_in_context(self._span))
        return carrier.get(TRACEPARENT_KEY, "")

    def set(self, attributes: Attributes) -> None:
        """Adds what became known of it."""
        self._span.set_attributes(dict(attributes))

    def round(self, number: int, duration_s: float, attributes: Attributes) -> None:
        """Tells of the round that has just ended, if it is of the share."""
        if self._span.is_recording() and self._tracer.keeps(number):
            end_ns = time.time_ns()
            begin_ns = end_ns - round(duration_s * 1e9)
            self._tracer.start_round(self._span, number, begin_ns, attributes).end(end_ns)

    def end(self, error: BaseException | None = None) -> None:
        """Ends it, for what reason."""
        if isinstance(error, GeneratorExit) or error is None:
            self._span.end()
            return
        kind = error.reason if isinstance(error, PacelineError) else type(error).__name__
        self._span.set_attribute("error.type", kind)
        self._span.set_status(Status(StatusCode.ERROR, str(error)))
        self._span.end()
