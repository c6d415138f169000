"""TLS contexts from the files and names that the command lines of HashiCorp's products accept."""

from __future__ import annotations  # ssl is loaded on first use

import ssl
from dataclasses import dataclass


class TlsFileError(Exception):
    """A file cannot be used; the message names it."""


@dataclass(frozen=True)
class Tls:
    """The TLS files and names of one product. If all fields are empty, TLS uses the system's trusted certificates and
    no client certificate.
    """

    ca_file: str = ""
    ca_path: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""
    """The name that the server's certificate must have; "": the host of its address."""
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        """Raises TlsFileError."""
        context = ssl.create_default_context()
        if self.ca_file or self.ca_path:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            try:
                context.load_verify_locations(self.ca_file or None, self.ca_path or None)
            except (OSError, ssl.SSLError) as error:
                raise _unusable("CA certificate", self.ca_file or self.ca_path, error) from None
        if not self.verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if self.cert_file or self.key_file:
            if not self.cert_file:
                raise TlsFileError(f"{self.key_file}: this client key has no certificate; give cert_file too")
            try:
                context.load_cert_chain(self.cert_file, self.key_file or None)
            except (OSError, ssl.SSLError) as error:
                raise _unusable("client certificate or key", f"{self.cert_file}, {self.key_file}", error) from None
        return context


def _unusable(what: str, file: str, error: Exception) -> TlsFileError:
    why = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return TlsFileError(f"{file}: the {what} cannot be used: {why}")
