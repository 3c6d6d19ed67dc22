"""A real HTTP server on this machine that keeps what it is sent."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Received(NamedTuple):
    method: str
    path: str
    content_type: str
    body: str


@dataclass
class Receiver:
    """`statuses` are answered in turn, the last one from then on."""

    url: str
    statuses: list[int] = field(default_factory=lambda: [200])
    headers: dict[str, str] = field(default_factory=dict)
    received: list[Received] = field(default_factory=list)
    may_answer: threading.Event = field(default_factory=threading.Event)

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.received]


@contextlib.contextmanager
def http_receiver() -> Iterator[Receiver]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    receiver = Receiver(f"http://127.0.0.1:{server.server_port}")
    receiver.may_answer.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            request = Received(self.command, self.path, self.headers["Content-Type"], body)
            receiver.may_answer.wait()
            receiver.received.append(request)
            statuses = receiver.statuses
            self.send_response(statuses.pop(0) if len(statuses) > 1 else statuses[0])
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *args: object) -> None:
            pass

    server.RequestHandlerClass = Handler
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.may_answer.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def raw_server(*answers: bytes, repeats: int = 1) -> Iterator[str]:
    """A server that says `answers` byte for byte, `repeats` times, and then nothing; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        is_over = threading.Event()
        kept: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while not is_over.is_set():
                    connection, _ = listening.accept()
                    kept.append(connection)
                    for _ in range(repeats):
                        for answer in answers:
                            connection.sendall(answer)
                            is_over.wait(0.02)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        is_over.set()
        listening.shutdown(socket.SHUT_RDWR)
        for connection in kept:
            connection.close()
        thread.join()


def refusing_url() -> str:
    """A URL at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    return f"http://127.0.0.1:{port}"
