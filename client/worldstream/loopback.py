"""Tells addresses of this very machine: a proxy that the environment names must not come between us and it. Pure."""

import ipaddress
import re
import urllib.parse


def is_loopback(url: str) -> bool:
    """Whether a URL, or a gRPC target such as "localhost:8001" or "ipv4:127.0.0.1:8001", leads to this machine."""
    address = re.sub(r"^(\w+://|dns:|ipv4:|ipv6:)/?", "", url)
    try:
        host = urllib.parse.urlsplit(f"//{address}").hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, or no address at all
        return False
