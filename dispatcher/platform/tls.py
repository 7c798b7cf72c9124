"""TLS contexts with today's defaults: TLS 1.2 and up, HTTP/1.1 by ALPN, certificates of pools verified."""

from __future__ import annotations

import ssl

from dispatcher.errors import ConfigError

PROTOCOLS = ["http/1.1"]


def server_context(certificate: str, key: str) -> ssl.SSLContext:
    """For the listening side. certificate: a PEM file, with the chain. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(PROTOCOLS)
    load(context, certificate, key)
    return context


def load(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Use these from now on, for new connections. Raises ConfigError; the context is then as before."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key or None, _no_password)
        context.load_cert_chain(certificate, key or None, _no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ConfigError(f"tls: cannot use {certificate}{' and ' + key if key else ''}: {_why(error)}") from error


def client_context(ca: str, verify: bool) -> ssl.SSLContext:
    """For connections to a pool. ca: a PEM file of authorities to trust instead of the system's. Raises ConfigError."""
    try:
        context = ssl.create_default_context(cafile=ca or None)
    except (OSError, ValueError) as error:
        raise ConfigError(f"ca: cannot use {ca}: {_why(error)}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(PROTOCOLS)
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted; a service cannot ask for a password")


def _why(error: OSError | ValueError) -> str:
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error)
