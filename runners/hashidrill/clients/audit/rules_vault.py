"""Rules about Vault's servers, its agent, its clients' environment, and consul-template."""

from collections.abc import Iterator
from pathlib import Path

from hashidrill.clients.audit.audited import Audited, Hit, Started, rule
from hashidrill.clients.audit.command_lines import Unit
from hashidrill.clients.audit.sources import Document
from hashidrill.clients.audit.tree import Mapping, Place, is_zero_duration, number_of

_VARIABLE = "VAULT_MAX_RETRIES"
_CT_RETRIES = 12
_VAULT_API_RETRIES = 2
"""Defaults: consul-template 0.41.0, config/retry.go; vault/api 1.21.0, client.go."""

_TOO_MANY_REQUESTS = 15
"""The most requests for one failing operation: more than any single layer makes by itself."""


@rule("HD301")
def vault_raft_no_retry_join(audited: Audited) -> Iterator[Hit]:
    for document in audited.of("vault-server"):
        for storage in document.body.blocks("storage", "backend"):
            raft = storage if "raft" in storage.labels else storage.block("raft")
            if raft is not None and not raft.has("retry_join"):
                yield Hit(document, storage.place, "a new node of this Vault does not join the others by itself")


@rule("HD302")
def vault_max_retries_zero(audited: Audited) -> Iterator[Hit]:
    one_layer = [each.unit for each in _template_units(audited)]  # consul-template retries by itself: HD403
    for document, unit, name, value, place in environment(audited):
        if name == _VARIABLE and value.strip() == "0" and unit not in one_layer:
            yield Hit(document, place, "VAULT_MAX_RETRIES=0: Vault's clients here do not retry")


def environment(audited: Audited) -> Iterator[tuple[Document, Unit | None, str, str, Place]]:
    """Variables, with their unit if any, of units and their command lines, environment files and Nomad's tasks."""
    for document in audited.documents:
        set_here = document.unit.variables() if document.unit is not None else document.variables
        for each in set_here:
            yield audited.at(each.path, document), document.unit, each.name, each.value, each.place
    for started in audited.all_commands:
        for variable, said in started.command.variables.items():
            yield started.document, started.unit, variable, said, started.place
    for group in audited.groups:
        for task in group.tasks():
            for env in task.blocks("env"):
                for entry in env.entries:
                    value = getattr(entry.value, "value", None)
                    if value is not None:
                        yield group.job.document, None, entry.key, str(value), entry.place


@rule("HD303")
def vault_agent_retry_disabled(audited: Audited) -> Iterator[Hit]:
    for document in audited.of("vault-agent"):
        for vault in document.body.blocks("vault"):
            for retry in vault.blocks("retry"):
                entry = retry.find("num_retries")
                if entry is not None and retry.number("num_retries") == -1:
                    yield Hit(document, entry.place, "num_retries = -1: this Vault Agent does not retry")


@rule("HD304")
def vault_agent_template_stays_silent(audited: Audited) -> Iterator[Hit]:
    for document in audited.of("vault-agent"):
        templates = document.body.blocks("template")
        said = [body.find("exit_on_retry_failure") for body in document.body.blocks("template_config")]
        off = all(entry is None for entry in said) or any(
            body.flag("exit_on_retry_failure") is False for body in document.body.blocks("template_config")
        )
        if templates and off:
            yield Hit(
                document,
                templates[0].place,
                "if these templates cannot be rendered, the agent only says so in its log",
            )


def _ct_retries(audited: Audited) -> Iterator[tuple[Document, str, Mapping]]:
    """(file, service, retry block) of all consul-template configurations and command-line flags."""
    bodies = [(document, document.body) for document in audited.of("consul-template")]
    bodies += [(each.document, each.settings) for each in _template_units(audited)]
    for document, said in bodies:
        for service in ("consul", "vault", "nomad"):
            for body in said.blocks(service):
                yield from ((document, service, retry) for retry in body.blocks("retry"))


@rule("HD401")
def consul_template_retry_disabled(audited: Audited) -> Iterator[Hit]:
    for document, service, retry in _ct_retries(audited):
        entry = retry.find("enabled")
        if entry is not None and retry.flag("enabled") is False:
            yield Hit(document, entry.place, f"the first error of {service} ends this consul-template")


@rule("HD402")
def consul_template_retry_uncapped(audited: Audited) -> Iterator[Hit]:
    for document, _, retry in _ct_retries(audited):
        entry = retry.find("max_backoff")
        if entry is not None and is_zero_duration(entry.value) and retry.flag("enabled") is not False:
            yield Hit(document, entry.place, "max_backoff = 0: the pause between retries doubles without a limit")


@rule("HD403")
def consul_template_times_vault(audited: Audited) -> Iterator[Hit]:
    for document in audited.of("consul-template"):
        vault = document.body.block("vault")
        if vault is None:
            continue
        retry = vault.block("retry")
        if retry is not None and retry.flag("enabled") is False:
            continue
        said = retry.find("attempts") if retry is not None else None
        above = _CT_RETRIES if said is None else number_of(said.value)
        below = _api_retries(audited, document)
        if above is None or below == 0:  # one layer only
            continue
        product = (above + 1) * (below + 1)
        if above == 0:  # without limit
            yield Hit(document, vault.place, f"reading a secret is retried without end, by {below + 1} requests each")
        elif product > _TOO_MANY_REQUESTS:
            shown = f"{above + 1:g} x {below + 1} = {product:g} requests"
            yield Hit(document, vault.place, f"one failing read of a secret is {shown}")


def _api_retries(audited: Audited, document: Document) -> int:
    name = Path(document.path).name
    for each in _template_units(audited):
        if each.unit is not None and any(word.rpartition("/")[2] == name for word in each.command.words):
            said = {variable.name: variable.value for variable in each.unit.variables()}
            said |= each.command.variables
            if said.get(_VARIABLE, "").isdigit():
                return int(said[_VARIABLE])
    return _VAULT_API_RETRIES


def _template_units(audited: Audited) -> list[Started]:
    return [each for each in audited.command_lines() if each.command.program == "consul-template"]


@rule("HD501")
def unit_without_restart(audited: Audited) -> Iterator[Hit]:
    for each in audited.command_lines():
        program, unit = each.command.program, each.unit
        runs = program == "consul-template" or any(map(each.command.starts, ("consul", "nomad", "vault")))
        if not runs or unit is None or each.command.supervised:
            continue
        # the unit itself may have the settings that a drop-in lacks
        if unit.last("Type") == "oneshot" or (unit.partial and not unit.last("Restart")):
            continue
        if unit.last("Restart") in {"", "no"}:
            yield Hit(each.document, each.place, f"if this {program} ends, nothing starts it again")
