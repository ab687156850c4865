"""The chart with certificates and tokens, as pods that run; cert-manager's part is played here."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import grpc
import pytest
import trustme

from paceline.v1 import gateway_pb2, gateway_pb2_grpc
from tests.deploy.mini_kubelet import POLL_S, MiniKubelet
from tests.deploy.rendering import Object, of_kind
from tests.deploy.test_cluster import DRAFT, GATEWAY, VERIFY, objects
from tests.deploy.test_cluster import cluster as _cluster
from tests.deploy.test_cluster import files as _files

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]
cluster, files = _cluster, _files


def write_secrets(folder: Path, chart: list[Object], token: str) -> bytes:
    """What cert-manager and an operator would write; returns the authority's certificate."""
    authority = trustme.CA()
    for one in of_kind(chart, "Certificate").values():
        issued = authority.issue_cert(*one["spec"]["dnsNames"])
        secret = folder / one["spec"]["secretName"]
        secret.mkdir(parents=True)
        (secret / "tls.crt").write_bytes(b"".join(c.bytes() for c in issued.cert_chain_pems))
        (secret / "tls.key").write_bytes(issued.private_key_pem.bytes())
        (secret / "ca.crt").write_bytes(authority.cert_pem.bytes())
    digest = hashlib.sha256(token.encode()).hexdigest()
    for name, key, content in (("access", "tokens", f"ann:{digest}\n"), ("ours", "token", token)):
        (folder / name).mkdir()
        (folder / name / key).write_text(content)
    return authority.cert_pem.bytes()


def test_certificates_and_tokens(cluster: MiniKubelet, tmp_path: Path) -> None:
    """Every hop is encrypted, under the names of the chart; `helm test` gets in with its token.

    Probes ask in plaintext all the while; zones are told by the label that Kubernetes sets.
    """
    chart = objects(
        verify=1,
        draft=1,
        tls={"mode": "certManager", "issuer": {"name": "ca"}, "clientCertificates": True},
        auth={"tokenSecret": {"name": "access"}},
        test={"prompt": "abc", "tokenSecret": {"name": "ours"}},
    )
    for one in of_kind(chart, "Deployment").values():
        one["spec"]["template"]["metadata"]["labels"]["topology.kubernetes.io/zone"] = "west"
    ca = write_secrets(tmp_path / "secrets", chart, "a token")
    cluster.apply(chart)
    cluster.wait_ready({GATEWAY: 1, VERIFY: 1, DRAFT: 1})
    assert 0 == cluster.run("shop-paceline-test")
    (address,) = cluster.addresses_of("shop-paceline-gateway")
    shown = tmp_path / "secrets" / "shop-paceline-gateway-tls"
    pair = (shown / "tls.key").read_bytes(), (shown / "tls.crt").read_bytes()
    name = (("grpc.ssl_target_name_override", "shop-paceline-gateway"),)

    def replicas(token: str, *own: bytes) -> list[gateway_pb2.Replica]:
        trust = grpc.ssl_channel_credentials(ca, *own)
        with grpc.secure_channel(f"{address}:50051", trust, options=name) as channel:
            stub = gateway_pb2_grpc.GatewayServiceStub(channel)
            metadata = (("authorization", f"Bearer {token}"),)
            request = gateway_pb2.ListModelsRequest()
            return list(stub.ListModels(request, timeout=30, metadata=metadata).replicas)

    for token, own, code in (
        ("another", pair, grpc.StatusCode.UNAUTHENTICATED),
        ("a token", (), grpc.StatusCode.UNAVAILABLE),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            replicas(token, *own)
        assert code == caught.value.code()
    while len(found := replicas("a token", *pair)) < 2:
        time.sleep(POLL_S)  # the gateway asks for new addresses every two seconds
    assert {"west"} == {one.zone for one in found if one.is_ready}
