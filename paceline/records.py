"""The nouns of speculative decoding as frozen values.

What the tiers say to one another, without saying how: no torch, no gRPC, no protobuf. `wire/`
alone turns these into messages and back. Token ids are plain tuples of ints.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

PROTOCOL_REVISION = 1


class VerificationRule(enum.Enum):
    """How a proposal is verified; every rule leaves the output's law the target's."""

    REJECTION_BLOCK = 1
    REJECTION_TOKEN = 2
    COUPLED = 3


class LawEncoding(enum.Enum):
    """How `Proposal.law` is written (speculation.proto, LawEncoding)."""

    POINT_MASS = 1
    SPARSE = 2
    DENSE = 3
    SHARED_NOISE = 4


class VerdictKind(enum.Enum):
    """Where the one token that every verdict adds came from."""

    RECOVERED = 1
    BONUS = 2
    PLAIN = 3


class TokenOrigin(enum.Enum):
    """Where a committed token came from."""

    DRAFT = 1
    RECOVERED = 2
    BONUS = 3
    PLAIN = 4
    FORCED = 5


class FinishReason(enum.Enum):
    """Why a generation ended well. Failures are errors, never a finish reason."""

    STOP = 1
    LENGTH = 2


class ConstraintKind(enum.Enum):
    """How a constraint is written; the value is its name in the contract."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class Constraint:
    """The form that the whole output must take."""

    kind: ConstraintKind
    text: str


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the target's logits become the law that tokens are drawn from.

    `stop_token_ids` holds every id that ends the generation, the model's own included unless the
    client ignores them: the gateway resolves that once.
    """

    temperature: float = 1.0
    top_k: int = 0
    """Number of likeliest tokens kept; 0 keeps all."""
    top_p: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    min_p: float = 0.0
    """Tokens under this share of the largest probability are dropped; 0 keeps all."""
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit)."""
    min_tokens: int = 0
    """Output tokens before which the stop tokens are masked."""
    banned_sequences: tuple[tuple[int, ...], ...] = ()
    num_log_probs: int | None = None
    """Likeliest tokens told with each token's log-probability; None tells no log-probability."""
    constraint: Constraint | None = None
    num_prompt_log_probs: int | None = None
    """The same as `num_log_probs` for the tokens of the prompt."""

    @property
    def is_greedy(self) -> bool:
        """Whether the law is a point mass at the argmax."""
        return self.temperature == 0.0

    @property
    def adjusts_logits(self) -> bool:
        """Whether anything acts before the temperature; most of it depends on the text so far."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or bool(self.logit_bias)
            or self.min_tokens > 0
            or bool(self.banned_sequences)
            or self.constraint is not None
        )

    @property
    def token_ids_by_field(self) -> dict[str, tuple[int, ...]]:
        """Every token id that a field names, for whoever knows the vocabulary."""
        return {
            "stop_token_ids": self.stop_token_ids,
            "logit_bias": tuple(token_id for token_id, _ in self.logit_bias),
            "banned_sequences": tuple(t for banned in self.banned_sequences for t in banned),
        }


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """All that decides a session's future on one tier; reopening sends it again, longer."""

    token_ids: tuple[int, ...]
    """Prompt and everything committed so far."""
    prompt_length: int
    sampling: SamplingParams
    rule: VerificationRule
    seed: int
    sample_index: int = 0
    """Among the samples of one request; with the seed it keys every draw."""
    cache_domain: str = ""
    arrival_time_s: float = 0.0
    """Unix time at which the generation, not this stream, arrived."""
    request_id: str = ""
    has_fresh_seed: bool = False
    """Whether no other session was ever opened with this seed and sample index."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A chain of draft tokens with the law each was drawn from, undecoded."""

    round: int
    base_length: int
    """Number of tokens, prompt and committed, that the proposal continues."""
    token_ids: tuple[int, ...] = ()
    encoding: LawEncoding = LawEncoding.POINT_MASS
    law: bytes = b""
    draft_s: float = 0.0
    """Time the draft tier spent on it, queueing included."""


@dataclass(frozen=True, slots=True)
class AuditSum:
    """The running sum of -ln p(y) - H(p) over audited tokens y; its mean is 0 if they follow p."""

    num_tokens: int = 0
    """Tokens whose law left a choice."""
    total: float = 0.0
    """The sum, in nats."""
    variance: float = 0.0
    """What the laws say of its variance."""
    evidence: float = 0.0
    """The most that there ever was against the laws; at 1 it is beyond chance for good."""

    @property
    def is_alarming(self) -> bool:
        """Whether the tokens do not follow the laws."""
        return self.evidence >= 1.0

    @property
    def deviations(self) -> float:
        """The sum in standard deviations; for people, not for judging."""
        return self.total / self.variance**0.5 if self.variance > 0.0 else 0.0


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What a verify replica's audit has seen since it started."""

    emitted: AuditSum = AuditSum()
    """Tokens that verdicts committed, against the target's laws."""
    drafted: AuditSum = AuditSum()
    """Draft tokens, accepted or not, against the laws that came with them."""


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """How busy a replica is."""

    num_open_sessions: int = 0
    num_queued: int = 0
    num_rows: int = 0
    """Rows of the last step."""
    num_held_blocks: int = 0
    num_free_blocks: int = 0
    is_draining: bool = False
    audit: AuditReport | None = None
    """Of a verify replica, in its reports of load; None elsewhere."""


@dataclass(frozen=True, slots=True)
class TokenLogProbs:
    """Log-probabilities at one position: log-softmax of the raw logits, natural logarithm."""

    chosen: float
    """Of the committed token."""
    top_token_ids: tuple[int, ...] = ()
    """The likeliest ids, likeliest first."""
    top_log_probs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target says about one proposal. It always adds exactly one token."""

    round: int
    num_accepted: int
    next_token_id: int
    kind: VerdictKind
    committed_length: int
    """Number of tokens, prompt and committed, after this verdict."""
    queue_s: float = 0.0
    forward_s: float = 0.0
    load: ReplicaLoad = field(default_factory=ReplicaLoad)
    log_probs: tuple[TokenLogProbs, ...] = ()
    """One per token that it commits where asked for, else empty."""
    prompt_log_probs: tuple[TokenLogProbs, ...] = ()
    """One per token of the prompt but the first, with a stream's first verdict where asked for."""
    margin: float | None = None
    """How far, in logits, the next token was from being another one; where that is known."""


@dataclass(frozen=True, slots=True)
class Advance:
    """Tells a draft session what was committed and asks for the next block."""

    round: int
    committed_length: int
    """Number of tokens, prompt and committed, after `new_token_ids`."""
    new_token_ids: tuple[int, ...]
    num_draft_tokens: int


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Which model a replica serves. Replicas are pooled by fingerprint."""

    name: str
    fingerprint: str
    tokenizer_fingerprint: str
    """Digest of the mapping from ids to token strings: equal means that ids mean the same."""
    vocabulary_size: int
    """Ids of the tokenizer, not of a padded head."""
    eos_token_ids: tuple[int, ...]
    max_length: int
    """Longest sequence, prompt and output together, in tokens."""
    dtype: str
    quantization: str = ""
    exact: bool = False
    noise_version: int = 0


@dataclass(frozen=True, slots=True)
class DraftSource:
    """One source of draft tokens, by the name that a session asks for it."""

    name: str
    model: ModelIdentity | None = None
    """None for a source without a model, which fits every target."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A session exists: what its tier found cached and what its limits are."""

    cached_prefix_length: int
    max_length: int
    max_draft_tokens: int
    source: str = ""
    """Name of the draft source; empty on the verify tier."""
