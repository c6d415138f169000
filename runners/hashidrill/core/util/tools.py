"""Finds system tools."""

from __future__ import annotations

import os
import shutil

SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Where tc and iptables live, and where Debian does not let ordinary users' PATH look."""


def tool(name: str) -> str | None:
    """The path of a system tool, in PATH or in the folders for system tools; None when it is not installed."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(SYSTEM_FOLDERS))
