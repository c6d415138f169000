"""Whom a fault hits: their labels as selectors of ours, and ours as the labels of the official charts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hashidrill.backends.interchange.steps import Reading, UnsupportedError, mapping
from hashidrill.units import shown

PRODUCTS = ("consul", "vault")
"""Those whose vendor has a chart with servers in it."""
_SERVICE_KEYS = ("app", "app.kubernetes.io/name", "app.kubernetes.io/instance")
_ONE = {("consul", "server"): "consul:one-follower", ("vault", "server"): "vault:one-standby"}
_ONE[("consul", "client")] = "host:client-1"
_ALL = {("consul", "server"): "consul:servers", ("vault", "server"): "vault:servers"}
_ALL[("consul", "client")] = "consul:clients"
PORTS = {"consul": 8300, "vault": 8201}
"""What the servers of a product ask each other on, for faults of ours that are on one port."""


_CHARTS = {"consul": {"app": "consul"}, "vault": {"app.kubernetes.io/name": "vault"}}
_SERVERS = {"component": "server"}
_ANY = "no label says who leads, so any server is hit, at random"
_LABELS: dict[str, tuple[dict[str, str], str, str]] = {
    "vault:active": ({**_SERVERS, "vault-active": "true"}, "one", ""),
    "vault:standbys": ({**_SERVERS, "vault-active": "false"}, "all", ""),
    "vault:one-standby": ({**_SERVERS, "vault-active": "false"}, "one", ""),
    "vault:servers": (_SERVERS, "all", ""),
    "consul:servers": (_SERVERS, "all", ""),
    "consul:clients": ({"component": "client"}, "all", ""),
    "consul:leader": (_SERVERS, "one", _ANY),
    "consul:one-follower": (_SERVERS, "one", _ANY),
}
"""Our selectors: what the labels of the chart add to those of the product, the mode, and what is lost."""


def on_of(spec: Mapping[str, Any], reading: Reading, at: str) -> str:
    """The selector that a spec means. Raises UnsupportedError where its labels name no agent that we know."""
    mode, selector = str(spec.get("mode", "one")), mapping(spec.get("selector") or {}, f"{at}.selector")
    if reading.on:
        reading.lose(f"{at}.selector: --on says {reading.on} instead of {_short(selector)}, mode {mode}")
        return reading.on
    if mode not in {"one", "all"}:
        raise UnsupportedError(f"{at}.mode: {shown(mode)} has no selector of ours; say whom with --on SELECTOR")
    others = sorted(set(selector) - {"labelSelectors", "namespaces"})
    if others:
        raise UnsupportedError(f"{at}.selector.{others[0]}: not read; say whom with --on SELECTOR")
    on = _by_labels(mapping(selector.get("labelSelectors") or {}, f"{at}.selector.labelSelectors"), mode)
    if not on:
        said = _short(selector)
        raise UnsupportedError(
            f"{at}.selector: {said} names no agent of Consul or Vault, as the labels of their charts do; say whom with"
            " --on SELECTOR, like --on consul:leader"
        )
    if mode == "one" and on.endswith(("one-follower", "one-standby")):
        product = on.partition(":")[0]
        harder = "consul:leader" if product == "consul" else "vault:active"
        reading.lose(f"{at}.mode: `one` is any of them at random; here it is {on}, and {harder} is the harder one")
    return on


def _by_labels(labels: Mapping[str, Any], mode: str) -> str:
    """The selector, or nothing where they name no agent."""
    product = _product(labels)
    role = str(labels.get("component", ""))
    if product == "vault" and str(labels.get("vault-active", "")) == "true":
        return "vault:active"
    return (_ALL if mode == "all" else _ONE).get((product, role), "")


def _product(labels: Mapping[str, Any]) -> str:
    return next((str(labels[key]) for key in _SERVICE_KEYS if labels.get(key) in PRODUCTS), "")


def side_of(target: Mapping[str, Any], reading: Reading, at: str) -> str:
    """The other side of a network fault, as our `from` has it. Raises UnsupportedError."""
    if reading.side:
        reading.lose(f"{at}: --from says {reading.side}")
        return reading.side
    selector = mapping(target.get("selector") or {}, f"{at}.selector")
    labels = mapping(selector.get("labelSelectors") or {}, f"{at}.selector.labelSelectors")
    product = _product(labels)
    side = f"{product}:all" if product and "component" not in labels else _by_labels(labels, "all")
    if not side:
        raise UnsupportedError(
            f"{at}.selector: {_short(selector)} names no agents of Consul or Vault; say who is on the"
            " other side with --from, like --from consul:servers"
        )
    return side


def labels_of(on: str) -> tuple[dict[str, str], str, str]:
    """(labels of the official chart, mode, what of the selector is lost); no labels where nothing fits."""
    product = on.partition(":")[0]
    if on not in _LABELS:
        return {}, "", f"{on}: the charts have no label for it"
    labels, mode, lost = _LABELS[on]
    return {**_CHARTS[product], **labels}, mode, f"{on}: {lost}" if lost else ""


def _short(selector: Mapping[str, Any]) -> str:
    labels = selector.get("labelSelectors")
    if isinstance(labels, Mapping) and labels:
        return ", ".join(f"{key}={value}" for key, value in labels.items())
    return shown(dict(selector)) if any(selector.values()) else "an empty selector"
