"""Translates labels of pods to selectors, and selectors to the labels of the official charts."""

from hashidrill.core.units import shown
from hashidrill.kubernetes.interchange.document import Document, Link, Reading, UnsupportedError

PRODUCTS = ("consul", "vault")
"""The products whose vendor has a chart that runs servers."""
_SERVICE_KEYS, _INSTANCE = ("app", "app.kubernetes.io/name"), "app.kubernetes.io/instance"
_RELEASE_KEYS = ("release", "chart", "heritage", "hasDNS", "helm.sh/chart", "app.kubernetes.io/managed-by")
"""Labels of the charts that all pods of a release have."""
SAY_ON = "name the target with --on SELECTOR, like --on consul:leader"
SAY_FROM = "name the other side with --from, like --from consul:servers"
_NO_NAMESPACE = "a local datacenter has no namespaces"
_ONE = {("consul", "server"): "consul:one-follower", ("vault", "server"): "vault:one-standby"}
_ONE[("consul", "client")] = "host:client-1"
_ALL = {("consul", "server"): "consul:servers", ("vault", "server"): "vault:servers"}
_ALL[("consul", "client")] = "consul:clients"
PORTS = {"consul": 8300, "vault": 8201}
"""The port on which each product's servers talk to each other, for faults on one port."""
VOLUMES = {"consul": "/consul/data", "vault": "/vault/data"}
"""Where the charts mount an agent's data."""

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
"""For each selector: additional labels of the chart, the mode, and the lost part."""


def on_of(spec: Document, reading: Reading) -> str:
    """The selector that a spec means. Raises UnsupportedError if its labels name no agent that we know."""
    if reading.on:
        spec.lose(f"--on says {reading.on}", "selector", "mode", "value")
        return reading.on
    mode, selector = spec.text("mode"), spec.part("selector")
    if mode not in {"one", "all"}:
        said = f"{shown(mode)} has no selector" if mode else "it is missing, and Chaos Mesh requires it"
        raise spec.wrong("mode", f"{said}; {SAY_ON}")
    spec.lose(f"Chaos Mesh does not read it with mode {mode}", "value")
    selector.lose(_NO_NAMESPACE, "namespaces")
    labels = selector.part("labelSelectors")
    if others := selector.unread():
        raise UnsupportedError(f"{others[0]}: no selector can express this; {SAY_ON}")
    on = by_labels(labels, mode)
    if not on:
        raise UnsupportedError(f"{selector.at}: {names_none(labels)}; {SAY_ON}")
    at_random(on, spec.place("mode"), reading)
    return on


def at_random(on: str, at: str, reading: Reading) -> None:
    """Reports that a foreign fault hits any server, leaders too."""
    if on.endswith(("one-follower", "one-standby")):
        harder = "consul:leader" if on.startswith("consul:") else "vault:active"
        reading.lose(f"{at}: `one` is a random pod; here it is {on}, and {harder} would be the harder target")


def by_labels(labels: Document, mode: str) -> str:
    """The selector, or "" if the labels name no agent. Raises UnsupportedError for a label that narrows it further."""
    product = _product(labels)
    if not product:
        return ""
    role, active = labels.text("component"), labels.text("vault-active") if product == "vault" else ""
    if others := labels.unread():
        raise UnsupportedError(f"{others[0]}: no selector can express this; {SAY_ON}")
    if active:
        standbys = "vault:one-standby" if mode == "one" else "vault:standbys"
        return {"true": "vault:active", "false": standbys}.get(active, "") if role in {"", "server"} else ""
    return (_ALL if mode == "all" else _ONE).get((product, role), "")


def _product(labels: Document) -> str:
    """The product, by the labels that name its service or, without such labels, its release; "" if unknown."""
    services = {value for key in _SERVICE_KEYS if (value := labels.text(key))}
    found = services.pop() if len(services) == 1 else "" if services else labels.text(_INSTANCE)
    if found not in PRODUCTS:
        return ""
    labels.lose("a local datacenter has one release", *_RELEASE_KEYS, _INSTANCE)
    return found


def side_of(target: Document, reading: Reading) -> str:
    """The other side of a network fault, as a value for our `from`. Raises UnsupportedError."""
    if reading.side:
        target.lose_all(f"--from says {reading.side}")
        return reading.side
    mode, selector = target.text("mode"), target.part("selector")
    if mode != "all":
        raise target.wrong("mode", f"{shown(mode)}: only `all` pods can be the other side; {SAY_FROM}")
    target.lose(f"Chaos Mesh does not read it with mode {mode}", "value")
    selector.lose(_NO_NAMESPACE, "namespaces")
    labels = selector.part("labelSelectors")
    if others := selector.unread():
        raise UnsupportedError(f"{others[0]}: no selector can express this; {SAY_FROM}")
    product = _product(labels)
    side = f"{product}:all" if product and not labels.unread() else by_labels(labels, "all")
    if not side:
        raise UnsupportedError(f"{selector.at}: {names_none(labels)}; {SAY_FROM}")
    return side


def everybody(reading: Reading, at: str) -> str:
    """The other side of a network fault that names none."""
    if reading.side:
        reading.lose(f"{at}: it hits all traffic; --from says {reading.side}")
    return reading.side or "all"


def own_container(given: Document, key: str, on: str) -> None:
    """Raises UnsupportedError for a container or process that does not run the agent: a sidecar is another fault."""
    product = product_of(on)
    names = given.texts(key) if key == "containerNames" else filter(None, [given.text(key)])
    for name in names:
        if name.isdecimal():
            given.lose("a process of the agent", key)
        elif name not in {product, *(f"{product}-{role}" for role in ("agent", "client", "server"))}:
            raise given.wrong(key, f"{shown(name)} is not {product}, and --on names an agent")


def product_of(on: str) -> str:
    product = on.partition(":")[0]
    return product if product in PORTS else "consul"


def link_of(on: str, side: str) -> Link:
    """The connections, on one port, that represent all traffic of an agent."""
    out = {"direction": "out"} if on.endswith(":clients") or on.startswith("host:client") else {}
    return {"port": PORTS[product_of(on)], **out, "from": side}


def labels_of(on: str) -> tuple[dict[str, str], str, str]:
    """(labels of the official chart, mode, the lost part of the selector); no labels if nothing fits."""
    product = on.partition(":")[0]
    if on not in _LABELS:
        return {}, "", f"{on}: the charts have no label for it"
    labels, mode, lost = _LABELS[on]
    return {**_CHARTS[product], **labels}, mode, f"{on}: {lost}" if lost else ""


def names_none(labels: Document) -> str:
    said = ", ".join(f"{key}={labels.text(key)}" for key in labels.written()) or "an empty selector"
    return f"{said} does not name an agent of Consul or Vault by the labels of their charts"
