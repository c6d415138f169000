"""Real repositories of git, on which neither a hook's environment nor its user's settings have a say."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

_WHO = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")


def git(folder: Path, *words: str) -> str:
    """Calls git there, and returns what it printed. Raises CalledProcessError."""
    done = subprocess.run(["git", *_WHO, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def new_repository(monkeypatch: Any, top: Path) -> Callable[..., str]:
    """Makes one without a commit, whose branch is `main`; calls git in it."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    top.mkdir(parents=True, exist_ok=True)
    git(top, "init", "-q", "-b", "main")
    return lambda *words: git(top, *words)
