"""The reference page of the rules, made from the rules."""

from __future__ import annotations

from hashidrill.clients.audit.all_rules import RULES
from hashidrill.clients.audit.report_text import about

_HEAD = """\
# Reference: the rules of the audit

Generated from the rules by `python -m hashidrill.clients.audit.reference > playbooks/reference-audit.md`.
`hashidrill audit --rules` lists them, `hashidrill audit --explain HD101` shows one. How to use them:
[audit-your-config.md](audit-your-config.md).

An error is a configuration that cannot work. A warning is one that turns a passing fault into one that users notice.
An info is a default that you should know about, and may well keep.

"Shown by" names the test that proves the claim on the real thing: Consul 1.22.2, Nomad 1.10.5, Vault 1.21.0,
consul-template 0.41.0, or the Python library itself. For Consul's config entries these tests show what Consul tells
Envoy; what Envoy then does, and claims without a test, come from the named source or documentation.

| rule | severity | name |
| --- | --- | --- |
"""


def page() -> str:
    """The whole page, in Markdown."""
    rows = "".join(
        f"| [{each.id}](#{each.id.lower()}) | {each.severity.word} | {each.name} |\n" for each in RULES.values()
    )
    sections = []
    for each in RULES.values():
        lines = "".join(f"- **{label}**: {said}\n" for label, said in about(each))
        sections.append(f"\n## {each.id}\n\n{each.name}, {each.severity.word}\n\n{lines}")
    return _HEAD + rows + "".join(sections)


if __name__ == "__main__":
    import sys

    sys.stdout.write(page())
