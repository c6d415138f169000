"""A GitHub Actions workflow: the history is kept in the cache from run to run, recordings are artifacts."""

from __future__ import annotations

import json
import shlex

from hashidrill.errors import UsageError
from hashidrill.schedules.job import WEBHOOK, Job

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
      - uses: actions/checkout@v4
      - uses: astral-sh/setup-uv@v6
        with:
          enable-cache: true
      - uses: actions/setup-go@v5
        with:
          go-version: stable
          cache: false
      - name: cache of binaries
        uses: actions/cache@v4
        with:
          path: ~/.cache/hashidrill
          key: hashidrill-${{{{ runner.os }}}}-binaries
      - name: the history so far
        uses: actions/cache/restore@v4
        with:
          path: {_HISTORY}
          key: {job.name}-history-${{{{ github.run_id }}}}-${{{{ github.run_attempt }}}}
          restore-keys: {job.name}-history-
      - name: what a datacenter in namespaces needs
        run: sudo sysctl -qw kernel.apparmor_restrict_unprivileged_userns=0 || true
      - name: drill
        env:
{secrets}        run: {json.dumps(command, ensure_ascii=False)}
      - name: keep the history
        if: always()
        uses: actions/cache/save@v4
        with:
          path: {_HISTORY}
          key: {job.name}-history-${{{{ github.run_id }}}}-${{{{ github.run_attempt }}}}
      - if: always()
        uses: actions/upload-artifact@v4
        with:
          name: recordings
          path: .hashidrill
          include-hidden-files: true
          if-no-files-found: ignore
"""
