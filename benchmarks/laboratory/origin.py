"""The servers of a laboratory: an S3 server and a plain HTTP server on shaped links, and Redis on a link of no rate.

Each has a file or a socket in the laboratory's directory. The S3 server is the product's embedded one (rclone) and
serves the folder `objects`, in which each file is an object.
"""

import os
import subprocess
import time
from pathlib import Path

import redis

from benchmarks.laboratory.network import Network, namespace_of
from benchmarks.laboratory.processes import spawn
from benchmarks.laboratory.system import CommandError, run
from echo_queue.connections.storage.endpoint import StoreEndpoint
from echo_queue.errors import Problem
from echo_queue.launch.servers.redis_server import find_program as find_redis
from echo_queue.launch.servers.s3_server import find_program as find_rclone
from echo_queue.queue import library

BUCKET = "laboratory"
KEYS = ("LABORATORYLABORATORY", "laboratory")
STORE_PORT = 9000
PLAIN_PORT = 9001
READY_S = 15.0
SETTINGS = ("--port", "0", "--save", "", "--appendonly", "no", "--daemonize", "no")


def endpoint(address: str) -> StoreEndpoint:
    """Returns the endpoint of the S3 server at `address`, without put-once, which rclone does not have."""
    url = f"http://{address}:{STORE_PORT}"
    return StoreEndpoint(url, BUCKET, access_key=KEYS[0], secret_key=KEYS[1], put_once=False)


def serve_store(network: Network, place: str, objects: Path) -> "subprocess.Popen[bytes]":
    """Starts rclone's S3 server, as the product embeds it."""
    (objects / BUCKET).mkdir(parents=True, exist_ok=True)
    address = f"{network.address(place)}:{STORE_PORT}"
    flags = ("--addr", address, "--vfs-cache-mode", "off", "--etag-hash", "", str(objects))
    return _rclone(network, place, ("s3", *flags), STORE_PORT)


def serve_plain(network: Network, place: str, folder: Path) -> "subprocess.Popen[bytes]":
    """Starts a web server for the star: every node reads `folder` from it, which others write (hence no cache)."""
    return _rclone(
        network,
        place,
        ("http", "--addr", f"{network.address(place)}:{PLAIN_PORT}", "--dir-cache-time", "0s", str(folder)),
        PLAIN_PORT,
    )


def serve_redis(network: Network, place: str) -> Path:
    """Starts a Redis with the queue's functions; returns its socket, which every namespace can open."""
    path = network.directory / "redis.sock"
    words = (str(find_redis(None)), *SETTINGS, "--unixsocket", str(path), "--dir", str(network.directory))
    server = spawn(place, words, network.directory / "redis.log")
    give_up = time.monotonic() + READY_S
    while True:
        try:
            with client(path) as connection:
                library.load(connection)
                return path
        except redis.ConnectionError as error:
            if server.poll() is not None or time.monotonic() > give_up:
                raise CommandError(Problem("redis", f"is not ready: {error}", "check redis.log")) from None
            time.sleep(0.02)


def client(path: Path) -> "redis.Redis":
    return redis.Redis(unix_socket_path=str(path), protocol=2, socket_timeout=30.0)


def _rclone(network: Network, place: str, words: tuple[str, ...], port: int) -> "subprocess.Popen[bytes]":
    environ = os.environ | {"RCLONE_AUTH_KEY": f'"{KEYS[0]},{KEYS[1]}"', "RCLONE_CONFIG": os.devnull}
    server = spawn(place, (str(find_rclone()), "serve", *words), network.directory / f"{place}.rclone.log", environ)
    give_up = time.monotonic() + READY_S
    while f":{port}" not in run("ip", "netns", "exec", namespace_of(place), "ss", "-Hltn"):
        if server.poll() is not None or time.monotonic() > give_up:
            log = (network.directory / f"{place}.rclone.log").read_text()[-500:]
            raise CommandError(Problem(f"rclone at {place}", "does not listen", f"its log ends: {log}"))
        time.sleep(0.02)
    return server
