"""A client's request as one frozen record, checked against the target that will serve it.

Everything that needs the model to be judged is judged here: ids, lengths, budgets, rules. Sampling
parameters are those of `paceline/wire/`. It opens nothing and draws only the seed.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.commit import Ending
from gateway.prompt import check_ids, read_prompt
from gateway.tiers import Target
from paceline import wire
from paceline.errors import InvalidArgument
from paceline.records import ModelIdentity, SamplingParams, SessionSpec, VerificationRule
from paceline.serving.logging import MAX_REQUEST_ID_LENGTH, current_request_id, is_request_id
from paceline.v1 import gateway_pb2

MAX_STOP_STRINGS = 16
MAX_SAMPLE_INDEX = 2**30
_UNSUPPORTED = "UNSUPPORTED_PARAMETER"


@dataclass(frozen=True, slots=True)
class Generation:
    """What one call asks for, resolved."""

    spec: SessionSpec
    """The session that both tiers open; its ids are prompt and what is already committed."""
    ending: Ending
    draft_source: str
    num_draft_tokens: int | None
    """Length that every proposal is pinned to."""
    max_draft_tokens: int | None
    """Upper bound of an adapted length."""
    draft_length: str = ""
    """Policy of its arm; empty takes the service's."""
    arm: str = ""
    """Its arm of a comparison; empty outside of one."""
    shares_prompt: bool = False
    """Whether the prompt is another sample's, which counts it and tells of it."""

    def samples(self, count: int) -> tuple[Generation, ...]:
        """This sample and those that follow it, `count` in all."""
        silent = replace(self.spec.sampling, num_prompt_log_probs=None)
        first = self.spec.sample_index
        others = (
            replace(self.spec, sample_index=index, sampling=silent)
            for index in range(first + 1, first + count)
        )
        return self, *(replace(self, spec=spec, shares_prompt=True) for spec in others)

    @property
    def prompt_token_ids(self) -> tuple[int, ...]:
        """The ids of the prompt."""
        return self.spec.token_ids[: self.spec.prompt_length]

    @property
    def committed_token_ids(self) -> tuple[int, ...]:
        """Output of an earlier attempt."""
        return self.spec.token_ids[self.spec.prompt_length :]

    @property
    def last_length(self) -> int:
        """Tokens, prompt and output, that the generation may reach."""
        return self.spec.prompt_length + self.ending.max_tokens


async def read_generation(
    request: gateway_pb2.GenerateRequest, target: Target, default_rule: VerificationRule
) -> Generation:
    """The record of a request.

    Raises:
        InvalidArgument: a field is malformed, unsupported or out of range; its limit is named.
    """
    prompt = await read_prompt(request.prompt, target)
    committed = _read_committed(request, target.model)
    spec = SessionSpec(
        token_ids=prompt + committed,
        prompt_length=len(prompt),
        sampling=_read_sampling(request, target.model),
        rule=_read_rule(request, target, default_rule),
        seed=request.seed if request.HasField("seed") else secrets.randbits(64),
        sample_index=request.first_sample_index,
        cache_domain=request.cache_domain,
        arrival_time_s=time.time(),
        request_id=_read_request_id(request.request_id),
        has_fresh_seed=not request.HasField("seed"),
    )
    ending = Ending(
        max_tokens=_read_max_tokens(request, len(prompt), len(committed), target.model.max_length),
        stop_token_ids=frozenset(spec.sampling.stop_token_ids),
        stop_strings=_read_stop_strings(request.stop_strings),
        include_stop=request.include_stop,
    )
    if spec.sampling.min_tokens > ending.max_tokens:
        raise InvalidArgument(
            "sampling.min_tokens",
            f"must be at most max_tokens = {ending.max_tokens}, got {spec.sampling.min_tokens}",
        )
    speculation = request.speculation
    return Generation(
        spec,
        ending,
        speculation.draft_source,
        _read_count(speculation, "draft_token_count"),
        _read_count(speculation, "max_draft_token_count"),
    )


def read_num_samples(request: gateway_pb2.GenerateRequest, limit: int) -> int:
    """How many samples are asked for.

    Raises:
        InvalidArgument: none, or more than `limit`; or more than one of an answer to go on with.
    """
    num_samples = request.sample_count if request.HasField("sample_count") else 1
    if not 1 <= num_samples <= limit:
        raise InvalidArgument(
            "sample_count",
            f"must be in [1, {limit}], got {num_samples}",
            metadata={"max_samples": str(limit)},
        )
    if num_samples > 1 and request.committed_token_ids:
        raise InvalidArgument("sample_count", "must be 1 with committed_token_ids")
    if not 0 <= request.first_sample_index <= MAX_SAMPLE_INDEX:
        raise InvalidArgument(
            "first_sample_index",
            f"must be in [0, {MAX_SAMPLE_INDEX}], got {request.first_sample_index}",
        )
    return num_samples


def _read_request_id(request_id: str) -> str:
    """The caller's id, else that of the call in the log."""
    if not is_request_id(request_id):
        raise InvalidArgument(
            "request_id", f"must be at most {MAX_REQUEST_ID_LENGTH} printable ASCII characters"
        )
    return request_id or current_request_id() or secrets.token_hex(8)


def _read_committed(request: gateway_pb2.GenerateRequest, model: ModelIdentity) -> tuple[int, ...]:
    committed = tuple(request.committed_token_ids)
    if committed and request.prompt.WhichOneof("form") != "token_ids":
        raise InvalidArgument("committed_token_ids", "needs a prompt of token_ids")
    check_ids(committed, model, field="committed_token_ids")
    return committed


def _read_sampling(request: gateway_pb2.GenerateRequest, model: ModelIdentity) -> SamplingParams:
    sampling = wire.decode_sampling(request.sampling)
    for name, token_ids in sampling.token_ids_by_field.items():
        if max(token_ids, default=0) >= model.vocabulary_size:
            raise InvalidArgument(
                f"sampling.{name}",
                f"ids must be under the vocabulary size of {model.vocabulary_size}, "
                f"got {max(token_ids)}",
            )
    if not request.sampling.ignore_eos:
        # One list from here on: the client's own and the model's.
        stops = dict.fromkeys(sampling.stop_token_ids + model.eos_token_ids)
        sampling = replace(sampling, stop_token_ids=tuple(stops))
    return sampling


def _read_rule(
    request: gateway_pb2.GenerateRequest, target: Target, default: VerificationRule
) -> VerificationRule:
    if value := request.speculation.rule:
        rule = wire.decode_rule(value, field="speculation.rule")
    else:
        rule = VerificationRule.COUPLED if request.HasField("seed") else default
    if rule not in target.rules:
        raise InvalidArgument(
            "speculation.rule",
            f"{rule.name} is not supported; supported are {sorted(r.name for r in target.rules)}",
            reason=_UNSUPPORTED,
        )
    return rule


def _read_max_tokens(
    request: gateway_pb2.GenerateRequest, num_prompt: int, num_committed: int, max_length: int
) -> int:
    room = max_length - num_prompt
    requested = request.max_tokens if request.HasField("max_tokens") else room
    metadata = {
        "max_length": str(max_length),
        "prompt_length": str(num_prompt),
        "max_tokens": str(requested),
    }
    if room < 1:
        raise InvalidArgument(
            "prompt",
            f"has {num_prompt} tokens, which leaves no room for output: the longest sequence, "
            f"prompt and output together, is {max_length}",
            reason="PROMPT_TOO_LONG",
            metadata=metadata,
        )
    if requested < 1:
        raise InvalidArgument("max_tokens", f"must be at least 1, got {requested}")
    if requested > room:
        raise InvalidArgument(
            "max_tokens",
            f"asks for {requested} tokens after a prompt of {num_prompt}: the longest sequence, "
            f"prompt and output together, is {max_length}",
            reason="MAX_TOKENS_TOO_LARGE",
            metadata=metadata,
        )
    if num_committed >= requested:
        raise InvalidArgument(
            "committed_token_ids", f"holds {num_committed} tokens, all of max_tokens = {requested}"
        )
    return requested


def _read_stop_strings(stop_strings: Sequence[str]) -> tuple[str, ...]:
    if len(stop_strings) > MAX_STOP_STRINGS:
        raise InvalidArgument(
            "stop_strings", f"must hold at most {MAX_STOP_STRINGS}, got {len(stop_strings)}"
        )
    for index, stop in enumerate(stop_strings):
        if not stop:
            raise InvalidArgument(f"stop_strings[{index}]", "must not be empty")
    return tuple(stop_strings)


def _read_count(speculation: gateway_pb2.SpeculationParams, name: str) -> int | None:
    if not speculation.HasField(name):  # type: ignore[arg-type]  # the stub wants literals
        return None
    count = int(getattr(speculation, name))
    if count < 0:
        raise InvalidArgument(f"speculation.{name}", f"must be at least 0, got {count}")
    return count
