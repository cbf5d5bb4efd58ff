"""Certificates of an authority of our own, and a Redis that shows one."""

import subprocess
from pathlib import Path


def certify(folder: Path) -> None:
    """Makes an authority of our own, and the certificate that it gives to "localhost"."""
    name = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    (folder / "names").write_text(name)
    for line in (
        "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout authority.key -out authority.pem",
        "req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout server.key -out server.csr",
        "x509 -req -days 2 -in server.csr -CA authority.pem -CAkey authority.key -CAcreateserial -extfile names "
        "-out server.pem",
    ):
        subprocess.run(["openssl", *line.split()], cwd=folder, check=True, capture_output=True)


def tls_words(folder: Path, port: int) -> list[str]:
    """Returns the words of a Redis that speaks TLS at `port` with the certificate that `certify` made in `folder`."""
    files = {"cert-file": "server.pem", "key-file": "server.key", "ca-cert-file": "authority.pem"}
    options = [word for name, file in files.items() for word in (f"--tls-{name}", str(folder / file))]
    return [*options, "--tls-port", str(port), "--tls-auth-clients", "no"]
