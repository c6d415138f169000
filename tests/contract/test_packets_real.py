"""Packet rules as the kernel takes them: the real nft, in a network namespace that ends with each test."""

from __future__ import annotations

import json
import subprocess

import pytest

from hashidrill import packets
from hashidrill.abc import Barrier
from hashidrill.datacenter.local.packet_rules import barriers
from hashidrill.faults.base import table_of
from hashidrill.packets import Block, Redirect
from hashidrill.provision import packages
from hashidrill.services.consul.faults import rpc

OTHERS = ("10.73.0.12", "10.73.0.13")
TABLE = table_of("step-1")
RULES = {
    "drop": [Block("input", OTHERS), Block("output", OTHERS)],
    "drop some": [Block("input", OTHERS, share=0.005), Block("output", OTHERS, share=0.3)],
    "drop all by chance": [Block("input", OTHERS, share=1.0)],
    "a port": [Block("input", OTHERS, 8500), Block("output", OTHERS[:1], 8300)],
    "refuse": [Block("input", OTHERS, 8500, refuse=True)],
    "redirect": [
        Redirect(OTHERS, 8300, 22_000, "link"), Redirect(OTHERS, 22_002, 22_001),
        Block("input", OTHERS, 8300, refuse=True, resets_pass=True),
    ],
    "cut votes": [rpc.cut_votes(OTHERS)],
    "cut streams": [rpc.cut_streams(OTHERS)],
    "cut off": rpc.cut_off(OTHERS),
}  # fmt: skip
PLUGIN = f"""
add table inet {TABLE}
add chain inet {TABLE} mine {{ type filter hook postrouting priority 0; policy accept; }}
add rule inet {TABLE} mine udp dport {{ 8301, 8302 }} limit rate over 10/second drop
"""
"""What packet rules cannot say."""


def ruleset(*scripts):
    """What `nft -j list ruleset` says after these scripts, one transaction each."""
    nft = packages.tool("nft")
    assert nft is not None, packages.install_command("nftables")
    steps = [f"{nft} -f - <<'EOF' || exit 1\n{script}EOF\n" for script in scripts]
    ran = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", f"{''.join(steps)}{nft} -j list ruleset"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)["nftables"]


def of_kind(items, kind):
    return [item[kind] for item in items if kind in item]


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_the_kernel_takes_the_rules_and_tells_them_as_they_were_meant(rules):
    items = ruleset(packets.script(TABLE, rules))
    assert [table["name"] for table in of_kind(items, "table")] == [TABLE]
    blocks = [rule for rule in rules if isinstance(rule, Block)]
    seen = [barrier for barrier in barriers(items) if barrier.chain in {"input", "output"}]
    assert seen == [Barrier(TABLE, rule.chain, frozenset(rule.addresses), rule.port) for rule in blocks]
    assert len(of_kind(items, "rule")) == sum(len(rule.lines()) for rule in rules)
    comments = {rule.comment for rule in rules if isinstance(rule, Redirect) and rule.comment}
    assert {rule["comment"] for rule in of_kind(items, "rule") if "comment" in rule} == comments


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_rules_that_are_set_again_are_there_once_and_cleared_ones_are_not(rules):
    again = packets.script(TABLE, rules)
    assert len(of_kind(ruleset(again, again), "rule")) == len(of_kind(ruleset(again), "rule"))
    assert of_kind(ruleset(again, packets.clearing(TABLE), packets.clearing(TABLE)), "table") == []


@pytest.mark.parametrize("before", [[packets.script(TABLE, RULES["redirect"])], []], ids=["set", "nothing"])
def test_suspended_rules_block_nothing_and_accept_before_they_redirect(before):
    """Also from a fresh process, that does not know whether they were ever set."""
    items = ruleset(*before, packets.suspending(TABLE))
    assert barriers(items) == []
    [first, *_] = [rule for rule in of_kind(items, "rule") if rule["chain"] == "prerouting"]
    assert first["expr"] == [{"accept": None}]
    assert {chain["name"] for chain in of_kind(items, "chain")} == {"prerouting", "input"}, "NAT goes on"


def test_nft_text_of_a_fault_of_ones_own_stands_beside_the_rules_and_goes_with_its_table():
    other = packets.script(table_of("step-2"), RULES["drop"])
    assert len(of_kind(ruleset(other, PLUGIN), "table")) == 2
    assert [table["name"] for table in of_kind(ruleset(other, PLUGIN, packets.clearing(TABLE)), "table")] == [
        table_of("step-2")
    ]
