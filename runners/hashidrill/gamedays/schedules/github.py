"""A GitHub Actions workflow: the history is kept in the cache from run to run, recordings are artifacts."""

from __future__ import annotations

import json
import shlex

from hashidrill.core.errors import UsageError
from hashidrill.gamedays.schedules.job import WEBHOOK, Job

SHORTEST_GAP_MINUTES = 5
"""https://docs.github.com/en/actions/reference/workflows-and-actions/events-that-trigger-workflows#schedule"""
_HISTORY = ".hashidrill/history.sqlite"


def workflow(job: Job) -> str:
    """The workflow. Raises UsageError for what GitHub does not do: another time zone, or more than every 5 minutes."""
    if job.zone != "UTC":
        raise UsageError(f"--time-zone {job.zone}: GitHub's schedules are UTC: leave it out, and shift the hours")
    if (gap := job.cron.shortest_gap_minutes) < SHORTEST_GAP_MINUTES:
        raise UsageError(
            f"--cron {str(job.cron)!r}: GitHub runs a schedule every {SHORTEST_GAP_MINUTES} minutes at most, and this"
            f" one is due after {gap}"
        )
    command = shlex.join(job.words)  # printable, so that JSON without escapes is one line of YAML
    if "${{" in command:
        raise UsageError("a path or option with ${{ in it would be code in a workflow: rename it")
    names = [WEBHOOK, *job.secrets]
    secrets = "".join(f"          {name}: ${{{{ secrets.{name} }}}}\n" for name in names)
    return f"""\
# Written by `hashidrill schedule`. Commit it as .github/workflows/{job.name}.yml on the default branch.
name: {json.dumps(job.name)}
on:
  schedule:
    - cron: {json.dumps(str(job.cron))}
  workflow_dispatch:
permissions:
  contents: read
concurrency:
  group: {json.dumps(job.name)}
  cancel-in-progress: false
jobs:
  drill:
    runs-on: ubuntu-latest
    timeout-minutes: 120
    env:
      HASHIDRILL_HISTORY: {_HISTORY}
    steps:
      - uses: actions/checkout@de0fac2e4500dabe0009e67214ff5f5447ce83dd # v6.0.2
      - uses: astral-sh/setup-uv@1e862dfacbd1d6d858c55d9b792c756523627244 # v7.1.4
        with:
          enable-cache: true
      - uses: actions/setup-go@44694675825211faa026b3c33043df3e48a5fa00 # v6.0.0
        with:
          go-version: stable
          cache: false
      - name: cache of binaries
        uses: actions/cache@9255dc7a253b0ccc959486e2bca901246202afeb # v5.0.1
        with:
          path: ~/.cache/hashidrill
          key: {job.name}-binaries-${{{{ github.run_id }}}}
          restore-keys: {job.name}-binaries-
      - name: the history so far
        uses: actions/cache/restore@9255dc7a253b0ccc959486e2bca901246202afeb # v5.0.1
        with:
          path: {_HISTORY}
          key: {job.name}-history-${{{{ github.run_id }}}}-${{{{ github.run_attempt }}}}
          restore-keys: {job.name}-history-
      - name: user namespaces
        run: sudo sysctl -qw kernel.apparmor_restrict_unprivileged_userns=0 || true
      - name: drill
        env:
{secrets}        run: {json.dumps(command, ensure_ascii=False)}
      - name: keep the history
        if: always()
        uses: actions/cache/save@9255dc7a253b0ccc959486e2bca901246202afeb # v5.0.1
        with:
          path: {_HISTORY}
          key: {job.name}-history-${{{{ github.run_id }}}}-${{{{ github.run_attempt }}}}
      - if: always()
        uses: actions/upload-artifact@b7c566a772e6b6bfb58ed0dc250532a479d7789f # v6.0.0
        with:
          name: recordings
          path: .hashidrill
          include-hidden-files: true
          if-no-files-found: ignore
"""
