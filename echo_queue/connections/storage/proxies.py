"""Says whether requests to a store go through a proxy of the user's shell."""

import os
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import urlsplit
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]  # of urllib itself, and in no stub


def is_loopback(url: str) -> bool:
    """Returns whether a server at this address is one of this machine."""
    host = urlsplit(url).hostname or ""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost" or host.endswith(".localhost")


def proxy_variable(url: str) -> str:
    """Returns the variable that names the proxy for requests to this address; empty if they go straight there."""
    parts = urlsplit(url)
    if is_loopback(url) or proxy_bypass_environment(parts.netloc):
        return ""
    names = (f"{parts.scheme}_proxy", f"{parts.scheme}_proxy".upper())
    return next((name for name in names if os.environ.get(name)), "")
