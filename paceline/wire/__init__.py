"""Messages to records and back: the only codec, and the only place that validates fields.

Decoding raises `InvalidArgument` naming the field and its limit. What a field means is written in
the proto files; what a record means, in `records.py`. Models, vocabularies and limits of a replica
are not known here: the services check ids and lengths against their own.
"""

from paceline.wire.durations import duration, seconds, watch_period_s
from paceline.wire.replicas import (
    decode_audit,
    decode_identity,
    decode_load,
    decode_sources,
    encode_audit,
    encode_identity,
    encode_load,
    encode_source,
)
from paceline.wire.rounds import (
    decode_advance,
    decode_proposal,
    decode_verdict,
    encode_advance,
    encode_log_probs,
    encode_proposal,
    encode_verdict,
)
from paceline.wire.sampling import decode_rule, decode_sampling, encode_rule, encode_sampling
from paceline.wire.sessions import (
    decode_opened,
    decode_session,
    encode_draft_opened,
    encode_session,
    encode_verify_opened,
)

__all__ = [
    "decode_advance",
    "decode_audit",
    "decode_identity",
    "decode_load",
    "decode_opened",
    "decode_proposal",
    "decode_rule",
    "decode_sampling",
    "decode_session",
    "decode_sources",
    "decode_verdict",
    "duration",
    "encode_advance",
    "encode_audit",
    "encode_draft_opened",
    "encode_identity",
    "encode_load",
    "encode_log_probs",
    "encode_proposal",
    "encode_rule",
    "encode_sampling",
    "encode_session",
    "encode_source",
    "encode_verdict",
    "encode_verify_opened",
    "seconds",
    "watch_period_s",
]
