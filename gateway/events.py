"""Messages for the client from what the gateway knows. It decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.commit import Committed
from gateway.replay import EQUAL, FAILED, MISMATCH, NEAR_TIE, SKIPPED
from gateway.replicas import Replica, Replicas
from gateway.request import Generation
from gateway.stats import SpeculationStats
from gateway.tiers import Sources, Target, Tiers
from paceline import wire
from paceline.pairing import fits
from paceline.records import FinishReason, ModelIdentity, TokenOrigin
from paceline.v1 import gateway_pb2


def started(generation: Generation, model: ModelIdentity) -> gateway_pb2.GenerateResponse:
    """The first event."""
    return gateway_pb2.GenerateResponse(
        started=gateway_pb2.Started(
            prompt_token_ids=generation.prompt_token_ids,
            seed=generation.spec.seed,
            model=wire.encode_identity(model),
            request_id=generation.spec.request_id,
        )
    )


def prompt_log_probs(committed: Committed) -> gateway_pb2.GenerateResponse:
    """The event that tells of the prompt."""
    return gateway_pb2.GenerateResponse(
        prompt_log_probs=gateway_pb2.PromptLogProbs(
            log_probs=wire.encode_log_probs(committed.prompt_log_probs)
        )
    )


def tokens(committed: Committed, sample_index: int) -> gateway_pb2.GenerateResponse:
    """The event of one round."""
    return gateway_pb2.GenerateResponse(
        tokens=gateway_pb2.Tokens(
            token_ids=committed.token_ids,
            origins=[_ORIGINS[origin] for origin in committed.origins],
            text=committed.text,
            log_probs=wire.encode_log_probs(committed.log_probs),
            sample_index=sample_index,
        )
    )


def finished(
    reason: FinishReason,
    generation: Generation,
    num_tokens: int,
    stats: gateway_pb2.GenerationStats,
) -> gateway_pb2.GenerateResponse:
    """The last event."""
    return gateway_pb2.GenerateResponse(
        finished=gateway_pb2.Finished(
            finish_reason=gateway_pb2.FinishReason.ValueType(reason.value),
            usage=gateway_pb2.Usage(
                prompt_token_count=0 if generation.shares_prompt else generation.spec.prompt_length,
                completion_token_count=num_tokens,
            ),
            stats=stats,
            sample_index=generation.spec.sample_index,
        )
    )


def fill(answer: gateway_pb2.CompleteResponse, samples: Sequence[gateway_pb2.Sample]) -> None:
    """Puts samples into a whole answer: the first into its own fields, several all together."""
    first = samples[0]
    answer.text = first.text
    answer.token_ids.extend(first.token_ids)
    answer.origins.extend(first.origins)
    answer.log_probs.extend(first.log_probs)
    answer.finished.CopyFrom(first.finished)
    if len(samples) > 1:
        answer.samples.extend(samples)


def speculation(stats: SpeculationStats) -> gateway_pb2.GenerationStats:
    """The counts and durations of the rounds."""
    return gateway_pb2.GenerationStats(
        round_count=stats.num_rounds,
        plain_round_count=stats.num_plain_rounds,
        drafted_token_count=stats.num_drafted,
        accepted_token_count=stats.num_accepted,
        drafted_count_by_position=stats.drafted_by_position,
        accepted_count_by_position=stats.accepted_by_position,
        acceptance_rate=stats.acceptance_rate,
        acceptance_length=stats.acceptance_length,
        round_duration_p50=wire.duration(stats.round_p50_s),
        overhead_duration_p50=wire.duration(stats.overhead_p50_s),
        draft_duration=wire.duration(stats.draft_s),
        verify_duration=wire.duration(stats.verify_s),
    )


def models(tiers: Tiers, num_replays: Mapping[str, int]) -> gateway_pb2.ListModelsResponse:
    """Every model with the draft sources that fit it, every replica, and replays by outcome."""
    served: dict[str, ModelIdentity] = {}
    for _, target in tiers.targets.ready():
        served.setdefault(target.model.fingerprint, target.model)
    return gateway_pb2.ListModelsResponse(
        models=[
            gateway_pb2.ServedModel(
                model=wire.encode_identity(model), draft_sources=_fitting(tiers.sources, model)
            )
            for model in served.values()
        ],
        replicas=[
            *map(_verify_replica, tiers.targets.all()),
            *map(_draft_replica, tiers.sources.all()),
        ],
        replays=gateway_pb2.ReplayReport(
            equal_count=num_replays[EQUAL],
            near_tie_count=num_replays[NEAR_TIE],
            mismatch_count=num_replays[MISMATCH],
            skipped_count=num_replays[SKIPPED],
            failed_count=num_replays[FAILED],
        ),
    )


_ORIGINS = {origin: gateway_pb2.TokenOrigin.ValueType(origin.value) for origin in TokenOrigin}


def _fitting(sources: Replicas[Sources], model: ModelIdentity) -> list[str]:
    names = (
        source.name
        for _, offered in sources.ready()
        for source in offered.sources
        if fits(source.model, model)
    )
    return list(dict.fromkeys(names))


def _verify_replica(replica: Replica[Target]) -> gateway_pb2.Replica:
    message = _replica(replica, gateway_pb2.TIER_VERIFY)
    if replica.description is not None:
        message.model.CopyFrom(wire.encode_identity(replica.description.model))
    return message


def _draft_replica(replica: Replica[Sources]) -> gateway_pb2.Replica:
    message = _replica(replica, gateway_pb2.TIER_DRAFT)
    sources = replica.description.sources if replica.description is not None else ()
    message.draft_sources.extend(source.name for source in sources)
    model = next((source.model for source in sources if source.model is not None), None)
    if model is not None:
        message.model.CopyFrom(wire.encode_identity(model))
    return message


def _replica(
    replica: Replica[Target] | Replica[Sources], tier: gateway_pb2.Tier.ValueType
) -> gateway_pb2.Replica:
    message = gateway_pb2.Replica(
        tier=tier,
        address=replica.address,
        is_ready=replica.is_ready,
        drafted_token_count=replica.num_drafted,
        accepted_token_count=replica.num_accepted,
        zone=replica.zone,
    )
    if replica.load is not None:
        message.load.CopyFrom(wire.encode_load(replica.load))
    return message
