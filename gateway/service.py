"""The gateway's RPCs: thin, one method each. What they do is in the files that they call."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import structlog

from gateway import events
from gateway.admission import Admission
from gateway.arms import assign
from gateway.config import GatewayConfig
from gateway.generation import Call
from gateway.metrics import GatewayMetrics
from gateway.pairing import check_source, choose_target
from gateway.prompt import read_prompt, read_text
from gateway.record import Observers
from gateway.replay import Replayer
from gateway.replicas import DescriptionT, Replicas, TierClient
from gateway.request import read_generation, read_num_samples
from gateway.samples import run_samples
from gateway.tenants import Tenants
from gateway.tiers import Tiers, draft_tier, verify_tier
from gateway.tokenizers import Tokenizers
from gateway.turns import Turns
from gateway.watch import Watch
from paceline.records import VerificationRule
from paceline.serving.credentials import client_credentials
from paceline.serving.endpoints import Context, Endpoint, Shape
from paceline.serving.metrics import new_registry
from paceline.serving.tracing import Tracer, Untraced, traceparent_of
from paceline.v1 import gateway_pb2

_log = structlog.get_logger(__name__)


class GatewayService:
    """`paceline.v1.GatewayService`."""

    name = "paceline.v1.GatewayService"

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._default_rule = VerificationRule[config.default_rule.upper().replace("-", "_")]
        self._admission = Admission(config.max_generations)
        tokenizers = Tokenizers(config.tokenizer_cache_dir)
        self._tenants = Tenants(config.token_file)
        self._tls = client_credentials(config.tier_tls())
        self._tiers = Tiers(
            self._replicas(config.verify, verify_tier(tokenizers)),
            self._replicas(config.draft, draft_tier()),
        )
        self.registry = new_registry()
        self._metrics = GatewayMetrics(self.registry, config.price_per_hour)
        self._watch = Watch(self._metrics, config.low_acceptance)
        self._turns = Turns()
        self._tracer: Tracer = Untraced()
        self._metrics.watch(self._tiers, lambda: self._admission.num_running)
        self._replayer = Replayer(self._tiers.targets, config, self._admission, self._metrics)

    @property
    def is_healthy(self) -> bool:
        """Always: a gateway without tiers answers so, and looks for them."""
        return True

    def endpoints(self) -> Sequence[Endpoint]:
        """Every RPC; with tokens, only for who has one."""
        every = (
            Endpoint("Generate", Shape.SERVER_STREAM, gateway_pb2.GenerateRequest, self.generate),
            Endpoint("Complete", Shape.UNARY, gateway_pb2.CompleteRequest, self.complete),
            Endpoint("ListModels", Shape.UNARY, gateway_pb2.ListModelsRequest, self.list_models),
            Endpoint("Tokenize", Shape.UNARY, gateway_pb2.TokenizeRequest, self.tokenize),
            Endpoint("Detokenize", Shape.UNARY, gateway_pb2.DetokenizeRequest, self.detokenize),
        )
        return tuple(map(self._tenants.guard, every))

    async def start(self) -> None:
        """Finds the replicas; returns once a target is ready and every draft was asked once."""
        self._tenants.load()
        self._tls.get()  # files that are wrong end the start, whether or not there are replicas
        self._tracer = self._config.tracer()
        await self._tiers.targets.start()
        await self._tiers.sources.start()
        _log.info("waiting_for_target", addresses=list(self._config.verify))
        await self._tiers.targets.wait_ready()
        await self._tiers.sources.wait_tried()

    async def drain(self) -> None:
        """Returns once no generation runs."""
        await self._admission.wait_idle()

    async def stop(self) -> None:
        """Lets go of the replicas."""
        await self._replayer.stop()
        await self._tiers.targets.stop()
        await self._tiers.sources.stop()
        await asyncio.to_thread(self._tracer.close)

    async def generate(
        self, request: gateway_pb2.GenerateRequest, context: Context
    ) -> AsyncGenerator[gateway_pb2.GenerateResponse, None]:
        """Streams the samples of one prompt."""
        arrived_s = time.perf_counter()
        request.cache_domain = self._tenants.domain(request.cache_domain, context)
        limit = min(self._config.max_samples, self._config.max_generations)
        num_samples = read_num_samples(request, limit)
        with self._admission.enter(num_samples):
            target = choose_target(self._tiers.targets, request.model)
            generation = await read_generation(request, target, self._default_rule)
            check_source(
                self._tiers.sources, generation.draft_source, target.model, generation.spec.rule
            )
            generation = assign(generation, self._config.arms)
            observers = Observers(self._metrics, self._watch, self._turns, self._tracer)
            traceparent = traceparent_of(context.invocation_metadata())
            call = Call(arrived_s, _deadline_s(context), observers, traceparent)
            samples = generation.samples(num_samples)
            run = run_samples(samples, target, self._tiers, self._config, call)
            run = self._replayer.overhear(run, generation, target)
            async with aclosing(run):
                async for event in run:
                    yield event

    async def complete(
        self, request: gateway_pb2.CompleteRequest, context: Context
    ) -> gateway_pb2.CompleteResponse:
        """Answers the samples of one prompt as a whole."""
        answer = gateway_pb2.CompleteResponse()
        samples: defaultdict[int, gateway_pb2.Sample] = defaultdict(gateway_pb2.Sample)
        async with aclosing(self.generate(request.generation, context)) as run:
            async for event in run:
                match event.WhichOneof("event"):
                    case "started":
                        answer.started.CopyFrom(event.started)
                    case "prompt_log_probs":
                        answer.prompt_log_probs.extend(event.prompt_log_probs.log_probs)
                    case "tokens":
                        sample = samples[event.tokens.sample_index]
                        sample.text += event.tokens.text
                        sample.token_ids.extend(event.tokens.token_ids)
                        sample.origins.extend(event.tokens.origins)
                        sample.log_probs.extend(event.tokens.log_probs)
                    case "finished":
                        samples[event.finished.sample_index].finished.CopyFrom(event.finished)
        events.fill(answer, [samples[index] for index in sorted(samples)])
        return answer

    async def list_models(
        self, request: gateway_pb2.ListModelsRequest, context: Context
    ) -> gateway_pb2.ListModelsResponse:
        """Lists models and replicas."""
        return events.models(self._tiers, self._replayer.counts)

    async def tokenize(
        self, request: gateway_pb2.TokenizeRequest, context: Context
    ) -> gateway_pb2.TokenizeResponse:
        """Gives the ids of a prompt."""
        target = choose_target(self._tiers.targets, request.model)
        return gateway_pb2.TokenizeResponse(token_ids=await read_prompt(request.prompt, target))

    async def detokenize(
        self, request: gateway_pb2.DetokenizeRequest, context: Context
    ) -> gateway_pb2.DetokenizeResponse:
        """Gives the text of ids."""
        target = choose_target(self._tiers.targets, request.model)
        return gateway_pb2.DetokenizeResponse(text=await read_text(request.token_ids, target))

    def _replicas(
        self, targets: Sequence[str], client: TierClient[DescriptionT]
    ) -> Replicas[DescriptionT]:
        config = self._config
        return Replicas(
            targets,
            client,
            resolve_period_s=config.resolve_period_s,
            tls=self._tls,
            zone=config.zone,
        )


def _deadline_s(context: Context) -> float | None:
    remaining_s = context.time_remaining()
    return None if remaining_s is None else asyncio.get_running_loop().time() + remaining_s
