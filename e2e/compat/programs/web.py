"""nginx with large bodies in its buffers while the clients pause."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from pathlib import Path

from compat.programs.common import free_port, log_lines, version_of, wait_for
from compat.runner import Program, Stage, Wrong

# One process: a worker is a fork of the master, and Terrace does not tier forked children.
CONFIGURATION = """
daemon off; master_process off; error_log {folder}/error.log; pid {folder}/pid; user root;
events {{ worker_connections 64; }}
http {{
  access_log off; client_max_body_size 64m; client_body_buffer_size 24m;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  client_body_in_single_buffer on; proxy_request_buffering on;
  proxy_buffering on; proxy_buffer_size 1m; proxy_buffers 24 1m; proxy_busy_buffers_size 8m;
  proxy_max_temp_file_size 0; proxy_read_timeout 200; client_body_timeout 200; send_timeout 200;
  server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{behind}; }} }}
}}
"""
CLIENTS = 5
BODY = log_lines(230_000)[: 14 << 20]


def read_exactly(connection: socket.socket, size: int) -> bytes:
    """That many bytes."""
    parts = bytearray()
    while len(parts) < size:
        chunk = connection.recv(min(1 << 20, size - len(parts)))
        if not chunk:
            raise Wrong(f"the connection ended after {len(parts)} of {size} bytes")
        parts += chunk
    return bytes(parts)


def read_head(connection: socket.socket) -> tuple[str, int]:
    """The first line of a message and the length of its body."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte:
            raise Wrong(f"the connection ended: {head!r}")
        head += byte
    lines = head.decode().split("\r\n")
    lengths = [line.split(":")[1] for line in lines if line.lower().startswith("content-length:")]
    return lines[0], int(lengths[0]) if lengths else 0


def echo(listener: socket.socket) -> None:
    """The server behind nginx: gives every body back, reversed."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=echo_one, args=(connection,), daemon=True).start()


def echo_one(connection: socket.socket) -> None:
    """One request."""
    with connection:
        try:
            _, length = read_head(connection)
            body = read_exactly(connection, length)
            head = b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % length
            connection.sendall(head + body[::-1])
        except (OSError, Wrong):
            return


def ask(port: int, number: int, wrong: list[str]) -> None:
    """One client: pauses in the middle of its request and of the answer."""
    try:
        body = b"client %d\n" % number + BODY[number * 1000 :]
        with socket.create_connection(("127.0.0.1", port), 200) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            head = b"POST / HTTP/1.0\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
            cut = len(body) - 100
            connection.sendall(head + body[:cut])
            time.sleep(2.5)
            connection.sendall(body[cut:])
            status, length = read_head(connection)
            if " 200 " not in status or length != len(body):
                raise Wrong(f"{status}, {length} bytes")
            first = read_exactly(connection, 1000)
            time.sleep(2.5)
            answer = first + read_exactly(connection, length - 1000)
        if hashlib.sha256(answer[::-1]).digest() != hashlib.sha256(body).digest():
            raise Wrong("the body is not what was sent")
    except (OSError, Wrong) as why:
        wrong.append(f"client {number}: {why!r}")


def reachable(port: int) -> bool:
    """Whether somebody listens."""
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except OSError:
        return False
    return True


def drive(stage: Stage) -> None:
    """Two rounds of slow clients."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=echo, args=(listener,), daemon=True).start()
        port, behind = free_port(), listener.getsockname()[1]
        configuration = stage.folder / "nginx.conf"
        text = CONFIGURATION.format(folder=stage.folder, port=port, behind=behind)
        configuration.write_text(text)
        line: list[str | Path] = [
            "nginx",
            "-c",
            configuration,
            "-p",
            stage.folder,
            "-e",
            stage.folder / "error.log",
        ]
        with stage.server(line, "nginx") as server:
            wait_for(stage, "nginx answers", lambda: reachable(port))
            wrong: list[str] = []
            for _ in range(2):
                clients = [
                    threading.Thread(target=ask, args=(port, n, wrong), daemon=True)
                    for n in range(CLIENTS)
                ]
                for one in clients:
                    one.start()
                for one in clients:
                    one.join()
            if wrong:
                raise Wrong("; ".join(wrong))
            stage.stop(server)


NGINX = Program(
    "nginx",
    version_of("nginx", "-v"),
    drive,
    "one process (master_process off); bodies of 14 MB held in its buffers while five clients "
    "pause in the middle of request and answer; SHA-256 of what came back",
    ("nginx:nginx-light",),
)
