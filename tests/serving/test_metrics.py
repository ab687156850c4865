"""The registry of a process, over HTTP, and the calls that it refused."""

from __future__ import annotations

import asyncio
import socket
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from prometheus_client import CollectorRegistry, Counter

from paceline.errors import NotFound
from paceline.serving.endpoints import Context, Endpoint, Shape
from paceline.serving.metrics import (
    FINE_BUCKETS_S,
    CallMetrics,
    new_registry,
    serve_metrics,
)

Connect = Callable[..., Awaitable[grpc.aio.Channel]]


def scraped(address: str) -> str:
    """What a scraper gets."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def test_a_registry_is_served_on_a_free_port() -> None:
    """R: port 0 takes a free one, and what is registered is scraped, the process's own included."""
    registry = new_registry()
    Counter("paceline_rides", "Rides", registry=registry).inc(3)
    with serve_metrics(registry, "127.0.0.1", 0) as address:
        text = scraped(address)
    assert "paceline_rides_total 3.0" in text
    assert "process_resident_memory_bytes " in text
    assert "_created" not in text


def test_registries_share_nothing() -> None:
    """Two services in one process register the same names."""
    first, second = new_registry(), new_registry()
    CallMetrics(first).refuse("Verify", "LOADING")
    CallMetrics(second)
    labels = {"rpc": "Verify", "reason": "LOADING"}
    assert 1.0 == first.get_sample_value("paceline_refusals_total", labels)
    assert None is second.get_sample_value("paceline_refusals_total", labels)


def test_without_a_port_nothing_is_served() -> None:
    """Unset means off."""
    with serve_metrics(new_registry(), "127.0.0.1", None) as address:
        assert "" == address


def test_the_port_is_free_again_after_the_block() -> None:
    """Nothing listens any more."""
    with serve_metrics(new_registry(), "127.0.0.1", 0) as address:
        pass
    host, _, port = address.partition(":")
    with socket.socket() as probe:
        assert 0 != probe.connect_ex((host, int(port)))


def test_a_taken_port_is_an_error() -> None:
    """Two processes on one port must fail."""
    with serve_metrics(new_registry(), "127.0.0.1", 0) as address:
        port = int(address.rpartition(":")[2])
        with pytest.raises(OSError), serve_metrics(new_registry(), "127.0.0.1", port):
            raise AssertionError("the port was shared")


def test_buckets_tell_parts_of_a_millisecond_apart() -> None:
    """A stage of a small model takes less than 1 ms."""
    assert 4 <= len([bound for bound in FINE_BUCKETS_S if bound < 0.001])
    assert sorted(set(FINE_BUCKETS_S)) == list(FINE_BUCKETS_S)


async def test_refusals_are_counted_by_reason(connect: Connect) -> None:
    """Every way in which a call ends with an error of ours, and none that ends well."""

    async def answer(request: StringValue, context: Context) -> StringValue:
        if request.value == "missing":
            raise NotFound("not here", reason="SOURCE_NOT_FOUND")
        if request.value == "broken":
            raise RuntimeError("a bug")
        return request

    registry = CollectorRegistry()
    endpoint = Endpoint("Answer", Shape.UNARY, StringValue, answer)
    channel = await connect(endpoint, on_refusal=CallMetrics(registry).refuse)
    call: Any = channel.unary_unary("/test.Service/Answer")
    for value in ("missing", "missing", "broken", "fine"):
        with_error = value != "fine"
        try:
            await call(StringValue(value=value).SerializeToString())
            assert not with_error
        except grpc.aio.AioRpcError:
            assert with_error
    found = {
        sample.labels["reason"]: sample.value
        for metric in registry.collect()
        for sample in metric.samples
    }
    assert {"SOURCE_NOT_FOUND": 2.0, "INTERNAL": 1.0} == found


async def test_a_cancelled_call_is_no_refusal(connect: Connect) -> None:
    """Who hangs up was not refused."""
    started, ended = asyncio.Event(), asyncio.Event()

    async def wait(request: StringValue, context: Context) -> AsyncIterator[StringValue]:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        yield request

    refusals: list[str] = []
    endpoint = Endpoint("Wait", Shape.SERVER_STREAM, StringValue, wait)
    channel = await connect(endpoint, on_refusal=lambda rpc, reason: refusals.append(reason))
    start: Any = channel.unary_stream("/test.Service/Wait")
    call = start(StringValue().SerializeToString())
    await started.wait()
    call.cancel()
    await ended.wait()
    assert [] == refusals
