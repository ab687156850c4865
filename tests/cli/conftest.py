"""A gateway made of a rule, served on loopback, for the commands to talk to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc
import pytest
from click.testing import CliRunner, Result

from paceline import wire
from paceline.cli.main import main
from paceline.records import AuditReport, AuditSum
from paceline.v1 import gateway_pb2, gateway_pb2_grpc, speculation_pb2

ACCEPTED, OWN = gateway_pb2.TOKEN_ORIGIN_DRAFT, gateway_pb2.TOKEN_ORIGIN_RECOVERED
MODEL = speculation_pb2.ModelIdentity(
    name="letters", fingerprint="0123456789abcdef", vocabulary_size=128, max_length=64
)


def _log_probs(token_id: int) -> speculation_pb2.TokenLogProbs:
    """Log-probabilities that tell which id they are of."""
    return speculation_pb2.TokenLogProbs(
        chosen=-token_id, top_token_ids=[token_id], top_log_probs=[-0.5]
    )


@dataclass
class FakeGateway(gateway_pb2_grpc.GatewayServiceServicer):
    """Writes the alphabet, an id per letter: two accepted, one of its own, and so on."""

    requests: list[gateway_pb2.GenerateRequest] = field(default_factory=list)
    text: str = "abcdefghi"
    wrong_for: str = "nobody"
    """A draft source with which the last letter comes out wrong."""
    is_wrong_greedily: bool = True
    """Whether it does so at temperature 0 too."""
    rejects_seeded: bool = True
    num_drafted: int = 4
    num_accepted: int = 2
    can_tokenize: bool = True
    quantization: str = ""
    model_names: tuple[str, ...] = ("letters",)
    tokenized_for: set[str] = field(default_factory=set)
    """Models that prompts were tokenized for."""
    failure: grpc.StatusCode | None = None
    audit: AuditReport = AuditReport(AuditSum(300, 5.0, 4.0, 0.125), AuditSum(200))  # noqa: RUF009 - frozen
    replays: gateway_pb2.ReplayReport = field(default_factory=gateway_pb2.ReplayReport)

    def Generate(
        self, request: gateway_pb2.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[gateway_pb2.GenerateResponse]:
        """Streams the text, three letters a round."""
        self.requests.append(request)
        if self.failure is not None:
            context.abort(self.failure, "because the test says so")
        source = request.speculation.draft_source
        is_plain = request.speculation.draft_token_count == 0 and source == "none"
        is_wrong = source == self.wrong_for and not is_plain
        if not self.is_wrong_greedily and request.sampling.temperature == 0.0:
            is_wrong = False
        text = self.text[:-1] + "!" if is_wrong else self.text
        yield gateway_pb2.GenerateResponse(started=gateway_pb2.Started(seed=7, model=MODEL))
        if request.sampling.HasField("prompt_log_prob_count"):
            prompt = gateway_pb2.PromptLogProbs(log_probs=[_log_probs(2)])
            yield gateway_pb2.GenerateResponse(prompt_log_probs=prompt)
        indices = range(request.sample_count or 1)
        for start in range(0, len(text), 3):
            for index in reversed(indices):
                piece = text[start : start + 3].swapcase() if index else text[start : start + 3]
                tokens = gateway_pb2.Tokens(
                    token_ids=map(ord, piece),
                    origins=[ACCEPTED, ACCEPTED, OWN],
                    text=piece,
                    sample_index=index,
                )
                if request.sampling.HasField("log_prob_count"):
                    tokens.log_probs.extend(_log_probs(ord(letter)) for letter in piece)
                yield gateway_pb2.GenerateResponse(tokens=tokens)
        for index in reversed(indices):
            finished = self._finished(len(text), is_plain)
            finished.sample_index = index
            if index:
                finished.usage.prompt_token_count = 0
            if request.HasField("seed") and not self.rejects_seeded:
                finished.stats.drafted_token_count = finished.stats.accepted_token_count
            yield gateway_pb2.GenerateResponse(finished=finished)

    def _finished(self, num_tokens: int, is_plain: bool) -> gateway_pb2.Finished:
        stats = gateway_pb2.GenerationStats(
            round_count=3,
            drafted_token_count=0 if is_plain else self.num_drafted,
            accepted_token_count=0 if is_plain else self.num_accepted,
            acceptance_rate=0.5,
            acceptance_length=3.0,
            tokens_per_second=20.0 if is_plain else 30.0,
            fallbacks={"draft_late": 1},
        )
        stats.time_to_first_token.FromMilliseconds(5)
        stats.round_duration_p50.FromMilliseconds(40)
        usage = gateway_pb2.Usage(prompt_token_count=2, completion_token_count=num_tokens)
        reason = gateway_pb2.FINISH_REASON_STOP
        return gateway_pb2.Finished(finish_reason=reason, usage=usage, stats=stats)

    def ListModels(
        self, request: gateway_pb2.ListModelsRequest, context: grpc.ServicerContext
    ) -> gateway_pb2.ListModelsResponse:
        """Models with two sources each, one replica of each tier."""
        served = []
        for name in self.model_names:
            one = gateway_pb2.ServedModel(model=MODEL, draft_sources=["int8", "ngram"])
            one.model.name, one.model.quantization = name, self.quantization
            served.append(one)
        load = speculation_pb2.ReplicaLoad(
            open_session_count=2, held_block_count=3, audit=wire.encode_audit(self.audit)
        )
        verify = gateway_pb2.Replica(
            tier=gateway_pb2.TIER_VERIFY,
            address="v:1",
            is_ready=True,
            model=MODEL,
            load=load,
            zone="west",
        )
        draft = gateway_pb2.Replica(
            tier=gateway_pb2.TIER_DRAFT,
            address="d:1",
            draft_sources=["int8", "ngram"],
            drafted_token_count=8,
            accepted_token_count=6,
        )
        return gateway_pb2.ListModelsResponse(
            models=served, replicas=[verify, draft], replays=self.replays
        )

    def Tokenize(
        self, request: gateway_pb2.TokenizeRequest, context: grpc.ServicerContext
    ) -> gateway_pb2.TokenizeResponse:
        """Two ids, or a refusal like that of a table model."""
        self.tokenized_for.add(request.model)
        if not self.can_tokenize:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "prompt.chat: not in the alphabet")
        return gateway_pb2.TokenizeResponse(token_ids=[1, 2])

    def Detokenize(
        self, request: gateway_pb2.DetokenizeRequest, context: grpc.ServicerContext
    ) -> gateway_pb2.DetokenizeResponse:
        """The letters of the ids."""
        return gateway_pb2.DetokenizeResponse(text="".join(map(chr, request.token_ids)))

    def Complete(
        self, request: gateway_pb2.CompleteRequest, context: grpc.ServicerContext
    ) -> gateway_pb2.CompleteResponse:
        """Not used by any command."""
        raise NotImplementedError


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGateway]:
    """Serves a fake gateway at the address that the commands take from PACELINE_ADDRESS."""
    fake = FakeGateway()
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    gateway_pb2_grpc.add_GatewayServiceServicer_to_server(fake, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    monkeypatch.setenv("PACELINE_ADDRESS", f"127.0.0.1:{port}")
    yield fake
    server.stop(None).wait()


@pytest.fixture
def paceline() -> Callable[..., Result]:
    """Runs `paceline ARGUMENTS` in this process."""

    def invoke(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(main, arguments, input=stdin, auto_envvar_prefix="PACELINE")

    return invoke
