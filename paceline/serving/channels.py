"""How the tiers connect: one set of transport options for both ends.

Which replicas exist, and which of them to use, is not known here.
"""

from __future__ import annotations

import grpc

KEEPALIVE_S = 20.0
KEEPALIVE_TIMEOUT_S = 10.0
# Above every product limit, so that a message too large reaches our own refusal, which names the
# limit; gRPC's own is an empty RESOURCE_EXHAUSTED.
TRANSPORT_LIMIT_BYTES = 64 * 1024 * 1024

# Keepalive finds peers that vanished without a word. Each end must allow the other's pings, else it
# closes the connection with "too many pings".
TRANSPORT_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", int(KEEPALIVE_S * 1000)),
    ("grpc.keepalive_timeout_ms", int(KEEPALIVE_TIMEOUT_S * 1000)),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", TRANSPORT_LIMIT_BYTES),
    ("grpc.max_send_message_length", TRANSPORT_LIMIT_BYTES),
)
SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *TRANSPORT_OPTIONS,
    ("grpc.http2.min_recv_ping_interval_without_data_ms", int(KEEPALIVE_S * 1000) // 2),
    # Two processes on one port must fail, not share it by chance.
    ("grpc.so_reuseport", 0),
)
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    *TRANSPORT_OPTIONS,
    # A session's stream is never retried by the transport: what it would replay is committed.
    ("grpc.enable_retries", 0),
    # A replica that restarts is found again within seconds; the default goes up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 5000),
    # Tiers talk directly: a proxy of the environment is for the world outside.
    ("grpc.enable_http_proxy", 0),
)


def open_channel(
    address: str, credentials: grpc.ChannelCredentials | None = None, server_name: str = ""
) -> grpc.aio.Channel:
    """Opens a channel to `address` (host:port); connecting happens at the first call.

    Without credentials it is plaintext. With them the server's certificate must be for
    `server_name`, or for the host of the address where that is empty.

    Call it inside the running event loop that will use the channel, and close it there. Whoever
    ends a stream early must call its `cancel()`: cancelling the task that reads it does not always
    reach the call, and the server's side would then stay open.
    """
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    name = (("grpc.ssl_target_name_override", server_name),) if server_name else ()
    return grpc.aio.secure_channel(address, credentials, options=(*CHANNEL_OPTIONS, *name))
