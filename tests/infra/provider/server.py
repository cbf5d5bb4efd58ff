"""A Terraform provider that knows its schema and does nothing else: enough for `validate`, and for `test` with mocks.

    python -m tests.infra.provider.server SCHEMA.json

It speaks go-plugin's handshake (a line on standard output, then gRPC with TLS over a Unix socket) and version 6 of
Terraform's plugin protocol. Terraform itself checks configurations against the schema; the answer to every further
question of validation is that there is nothing to object to.
"""

import base64
import datetime
import json
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tf.gen import grpc_controller_pb2, grpc_controller_pb2_grpc, grpc_stdio_pb2_grpc, tfplugin_pb2_grpc
from tf.gen import tfplugin_pb2 as protocol

NESTING = {
    "single": protocol.Schema.NestedBlock.SINGLE,
    "list": protocol.Schema.NestedBlock.LIST,
    "set": protocol.Schema.NestedBlock.SET,
    "map": protocol.Schema.NestedBlock.MAP,
}


def block_of(schema: dict[str, Any]) -> protocol.Schema.Block:
    attributes = [
        protocol.Schema.Attribute(
            name=name,
            type=json.dumps(one["type"]).encode(),
            required=one["required"],
            optional=not one["required"],
            computed=one["computed"] and not one["required"],
        )
        for name, one in schema.get("attributes", {}).items()
    ]
    blocks = [
        protocol.Schema.NestedBlock(
            type_name=name,
            block=block_of(one["schema"]),
            nesting=NESTING[one["nesting"]],
            min_items=int(one["required"] and one["nesting"] != "single"),
            max_items=one["most"],
        )
        for name, one in schema.get("blocks", {}).items()
    ]
    return protocol.Schema.Block(attributes=attributes, block_types=blocks)


class Provider(tfplugin_pb2_grpc.ProviderServicer):  # type: ignore[misc]
    def __init__(self, schema: dict[str, Any], stop: threading.Event) -> None:
        self._schema = schema
        self._stop = stop

    def GetProviderSchema(self, request: Any, context: Any) -> Any:
        def wrapped(schema: dict[str, Any]) -> protocol.Schema:
            return protocol.Schema(version=0, block=block_of(schema))

        provider = {**self._schema["provider"]}
        # A provider's configuration has nothing that the provider computes.
        provider["attributes"] = {
            name: one | {"computed": False} for name, one in provider.get("attributes", {}).items()
        }
        return protocol.GetProviderSchema.Response(
            provider=wrapped(provider),
            resource_schemas={name: wrapped(one) for name, one in self._schema["resources"].items()},
            data_source_schemas={name: wrapped(one) for name, one in self._schema["data_sources"].items()},
        )

    def ValidateProviderConfig(self, request: Any, context: Any) -> Any:
        return protocol.ValidateProviderConfig.Response()

    def ValidateResourceConfig(self, request: Any, context: Any) -> Any:
        return protocol.ValidateResourceConfig.Response()

    def ValidateDataResourceConfig(self, request: Any, context: Any) -> Any:
        return protocol.ValidateDataResourceConfig.Response()

    def UpgradeResourceState(self, request: Any, context: Any) -> Any:
        return protocol.UpgradeResourceState.Response(upgraded_state=protocol.DynamicValue(json=request.raw_state.json))

    def StopProvider(self, request: Any, context: Any) -> Any:
        self._stop.set()
        return protocol.StopProvider.Response()


class Controller(grpc_controller_pb2_grpc.GRPCControllerServicer):  # type: ignore[misc]
    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop

    def Shutdown(self, request: Any, context: Any) -> Any:
        self._stop.set()
        return grpc_controller_pb2.Empty()


class Stdio(grpc_stdio_pb2_grpc.GRPCStdioServicer):  # type: ignore[misc]
    def StreamStdio(self, request: Any, context: Any) -> Any:
        return iter(())


def certificate() -> tuple[bytes, bytes, bytes]:
    """Makes a certificate for one conversation: its key and itself in PEM, and itself in DER."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return (
        private,
        made.public_bytes(serialization.Encoding.PEM),
        made.public_bytes(serialization.Encoding.DER),
    )


def main() -> None:
    schema = json.loads(Path(sys.argv[1]).read_text())
    stop = threading.Event()
    server = grpc.server(ThreadPoolExecutor(4))
    tfplugin_pb2_grpc.add_ProviderServicer_to_server(Provider(schema, stop), server)
    grpc_controller_pb2_grpc.add_GRPCControllerServicer_to_server(Controller(stop), server)
    grpc_stdio_pb2_grpc.add_GRPCStdioServicer_to_server(Stdio(), server)
    private, public, der = certificate()
    credentials = grpc.ssl_server_credentials([(private, public)])
    with tempfile.TemporaryDirectory(prefix="provider-") as folder:
        server.add_secure_port(f"unix:{folder}/socket", credentials)
        server.start()
        encoded = base64.b64encode(der).decode().rstrip("=")
        print(f"1|6|unix|{folder}/socket|grpc|{encoded}", flush=True)
        stop.wait(timeout=600)
        server.stop(grace=1).wait(timeout=5)


if __name__ == "__main__":
    main()
