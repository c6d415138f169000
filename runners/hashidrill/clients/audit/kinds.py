"""The kind of a file, recognised by names at its top level that only one kind has.

If two kinds share names, the order of `_TELLTALES` decides, and its functions check the differences.
"""

import re
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from hashidrill.clients.audit.tree import Mapping, Scalar, Sequence, Value, fold


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


KINDS = (
    "consul-agent",
    "consul-entry",
    "consul-template",
    "environment",
    "nomad-agent",
    "nomad-job",
    "python",
    "systemd-unit",
    "vault-agent",
    "vault-server",
)
"""All kinds of files that the audit judges. `--kind` forces one."""

ENTRY_KINDS = _words(
    "api-gateway control-plane-request-limit exported-services file-system-certificate http-route ingress-gateway "
    "inline-certificate jwt-provider mesh proxy-defaults sameness-group service-defaults service-intentions "
    "service-resolver service-router service-splitter tcp-route terminating-gateway"
)
"""Kinds of Consul's config entries: AllConfigEntryKinds in consul 1.22.2, agent/structs/config_entry.go."""

_NOMAD_AGENT = {"plugin", "plugin_dir", "vault", "acl", "disable_update_check", "leave_on_interrupt", "region"}
_CONSUL_AGENT = _words(
    "advertise_addr auto_config auto_encrypt bootstrap bootstrap_expect check checks client_addr config_entries "
    "connect dns_config encrypt gossip_lan leave_on_terminate node_meta node_name performance primary_datacenter "
    "recursors rejoin_after_leave retry_interval retry_join retry_join_wan retry_max service services start_join "
    "ui_config verify_incoming verify_outgoing"
)
_VAULT_STORAGE = _words(
    "aerospike azure cassandra cockroachdb consul dynamodb etcd file foundationdb gcs inmem manta mssql mysql oci "
    "postgresql raft s3 spanner swift zookeeper"
)
_VAULT_SERVER = {"backend", "ha_storage", "seal", "storage", "disable_mlock"}
_VAULT_AGENT = {"api_proxy", "auto_auth", "cache", "env_template", "exit_after_auth", "template_config"}
_ENVCONSUL = {"pristine", "sanitize", "upcase", "prefix", "secret"}
"""Names of envconsul, which shares its other names with consul-template but has different defaults."""

_CONSUL_TEMPLATE = {"deduplicate", "template", "reload_signal", "kill_signal", "vault_agent_token_file", "max_stale"}


def kind_of(tree: Value) -> str | None:
    """The kind of an HCL or JSON document; None if it is unknown."""
    if not isinstance(tree, Mapping):
        return None
    return next((kind for kind, told in _TELLTALES.items() if told(tree)), None)


def _any(tree: Mapping, names: AbstractSet[str]) -> bool:
    return bool(tree.names() & {fold(name) for name in names})


def _is_job(tree: Mapping) -> bool:
    """`job "name" { group ... }`, or the API's form: `{"Job": {"TaskGroups": [...]}}`, also without `Job`."""
    for job in [*tree.blocks("job"), tree]:
        if job.blocks("group") or job.blocks("TaskGroups") or (job.labels and job.blocks("task")):
            return True
    return False


def _is_entry(tree: Mapping) -> bool:
    return (tree.text("Kind") or "").lower() in ENTRY_KINDS


def _is_vault_agent(tree: Mapping) -> bool:
    """Vault Agent has `vault { retry { num_retries } }` where consul-template has `retry { attempts }`."""
    if any(retry.has("num_retries") for vault in tree.blocks("vault") for retry in vault.blocks("retry")):
        return True
    return _any(tree, _VAULT_AGENT) and not _any(tree, _VAULT_SERVER)


def _is_vault_server(tree: Mapping) -> bool:
    stored = any(set(body.labels) | body.names() & _VAULT_STORAGE for body in tree.blocks("storage", "ha_storage"))
    stored = stored or any(set(body.labels) & _VAULT_STORAGE for body in tree.blocks("backend"))
    return stored or (_any(tree, {"listener"}) and _any(tree, {"api_addr", "cluster_addr", "disable_mlock"}))


def _is_nomad_agent(tree: Mapping) -> bool:
    """Nomad's `server` and `client` are blocks with `enabled`; Consul's `server` is true or false."""
    roles = [*tree.blocks("server"), *tree.blocks("client")]
    if any(role.has("enabled", "server_join", "bootstrap_expect", "servers", "retry_join") for role in roles):
        return True
    # a part of a configuration: `consul { }` or `plugin "docker" { }` in a separate file
    return bool(tree.blocks("plugin")) or (bool(tree.blocks("consul")) and _any(tree, _NOMAD_AGENT - {"vault"}))


def _is_consul_template(tree: Mapping) -> bool:
    if _any(tree, _ENVCONSUL):
        return False
    templates = tree.blocks("template")
    if any(body.has("source", "contents", "destination") for body in templates):
        return True
    retried = any(body.has("retry") for body in tree.blocks("consul", "vault", "nomad"))
    return retried or (_any(tree, _CONSUL_TEMPLATE - {"template"}) and _any(tree, {"consul", "vault", "exec"}))


def _is_consul_agent(tree: Mapping) -> bool:
    said = tree.find("server")
    if said is not None and isinstance(said.value, Scalar) and isinstance(said.value.value, bool):
        return True
    request_limits = any(body.has("request_limits") for body in tree.blocks("limits"))
    service = [body for body in tree.blocks("service", "services") if body.has("name", "id", "port")]
    names = tree.names() & {fold(name) for name in _CONSUL_AGENT - {"service", "services", "check", "checks"}}
    return request_limits or bool(service) or (bool(names) and _plausible(tree))


def _plausible(tree: Mapping) -> bool:
    """Any JSON may have a single telltale name (`checks`, `encrypt`), but seldom two names of an agent by chance."""
    known = {fold(name) for name in _CONSUL_AGENT | {"data_dir", "datacenter", "log_level", "ports", "acl", "tls"}}
    known |= {
        fold(name) for name in ("addresses", "bind_addr", "domain", "limits", "server", "telemetry", "enable_syslog")
    }
    found = tree.names() & known
    return len(found) >= 2 or found <= {fold("retry_join"), fold("bootstrap_expect"), fold("start_join")}


_TELLTALES: dict[str, Callable[[Mapping], bool]] = {
    "nomad-job": _is_job,
    "consul-entry": _is_entry,
    "vault-agent": _is_vault_agent,
    "vault-server": _is_vault_server,
    "nomad-agent": _is_nomad_agent,
    "consul-template": _is_consul_template,
    "consul-agent": _is_consul_agent,
}


def part_of(tree: Value, kind: str) -> bool:
    """Whether a file without a telltale key, for example one with `log_level` only, can belong to such an agent."""
    known = _PARTS.get(kind, frozenset())
    return isinstance(tree, Mapping) and bool(tree.entries) and tree.names() <= known


_COMMON = _words(
    "acl addresses autopilot bind_addr data_dir datacenter enable_debug enable_syslog limits log_file log_json "
    "log_level log_rotate_bytes log_rotate_duration log_rotate_max_files ports telemetry tls"
)
_PARTS = {
    "consul-agent": frozenset(map(fold, _CONSUL_AGENT | _COMMON | {"domain", "server", "ui"})),
    "nomad-agent": frozenset(
        map(
            fold, _NOMAD_AGENT | _COMMON | {"advertise", "audit", "client", "consul", "keyring", "name", "server", "ui"}
        )
    ),
}


_NAMED = re.compile(r"""(?<![\w.-])(?P<name>\w+)["']?\s*(?:[:=]|\{|"[^"\n]*"\s*\{)""")
_TELLING = {
    name for name in _CONSUL_AGENT | _NOMAD_AGENT | _VAULT_SERVER | _VAULT_AGENT | _CONSUL_TEMPLATE if "_" in name
} | {"TaskGroups", "api_addr", "cluster_addr", "server_join", "start_join"}
"""Keys that files of other programs do not have by chance."""


def names_an_agent(text: str) -> bool:
    """Whether an unparsable text contains two keys of an agent's configuration, one of which only agents have.

    It is enough too if it contains `data_dir`, as most agents' files do, and two keys that other programs share.
    """
    names = {found["name"] for found in _NAMED.finditer(text)}
    known = len(names & (_TELLING | _COMMON | _AGENTS_BLOCKS))
    return known > 1 if names & _TELLING else known > 2 and "data_dir" in names


_AGENTS_BLOCKS = {"client", "consul", "listener", "server", "storage", "vault", "enabled", "servers", "ID", "Name"}


def entries_of(tree: Value | None) -> list[Mapping]:
    """The config entries in a document: the document itself, or the entries that an agent bootstraps."""
    if isinstance(tree, Sequence):
        return [item for item in tree.items if isinstance(item, Mapping) and _is_entry(item)]
    if not isinstance(tree, Mapping):
        return []
    within = [entry for body in tree.blocks("config_entries") for entry in body.blocks("bootstrap")]
    return [body for body in [tree, *within] if _is_entry(body)]
