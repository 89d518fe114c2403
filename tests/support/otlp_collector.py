"""A collector of spans on a port of this machine: it takes OTLP over HTTP and keeps what came."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Received:
    """A span as it came. Ids are hexadecimal digits."""

    program: str
    name: str
    trace: str
    span: str
    parent: str
    links: list[tuple[str, str]]
    attributes: dict[str, Any]
    began_ns: int
    ended_ns: int
    failed: bool


@dataclass
class Collector:
    url: str
    spans: list[Received] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)

    def named(self, name: str, **attributes: Any) -> list[Received]:
        """The spans of that name; `batch_id` stands for `gemm_farm.batch.id`."""
        wanted = {f"gemm_farm.{key.replace('_', '.')}": value for key, value in attributes.items()}
        return [one for one in list(self.spans) if one.name == name and wanted.items() <= one.attributes.items()]


def _value(found: Any) -> Any:
    return getattr(found, found.WhichOneof("value"))


def _read(body: bytes) -> Iterator[Received]:
    for of_program in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = {one.key: _value(one.value) for one in of_program.resource.attributes}
        for scope in of_program.scope_spans:
            for one in scope.spans:
                yield Received(
                    program=resource["service.name"],
                    name=one.name,
                    trace=one.trace_id.hex(),
                    span=one.span_id.hex(),
                    parent=one.parent_span_id.hex(),
                    links=[(link.trace_id.hex(), link.span_id.hex()) for link in one.links],
                    attributes={each.key: _value(each.value) for each in one.attributes},
                    began_ns=one.start_time_unix_nano,
                    ended_ns=one.end_time_unix_nano,
                    failed=one.status.code == 2,
                )


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that takes spans inside the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collector.paths.add(self.path)
            taken = self.path == "/v1/traces"
            collector.spans.extend(_read(body) if taken else ())
            self.send_response(200 if taken else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the base class names it
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()
