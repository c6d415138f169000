"""The page on the file of an existing datacenter names every key and every variable, and no other."""

import re

import pytest

from hashidrill.staging.attach.product import attachables
from hashidrill.staging.attach.target import KubernetesPart
from hashidrill.staging.carriers.settings import Carriers, NomadSettings, SshSettings, carrier_rights
from hashidrill.staging.generators.settings import NomadSettings as Workers
from hashidrill.staging.interlocks.settings import InterlockSettings
from places import ROOT

PAGE = (ROOT / "playbooks" / "reference-attach.md").read_text()
PRODUCTS = ("consul", "nomad", "vault")
_UNDER = {"token": "token_file", "ssl": "address", "skip_verify": "verify", "http_auth": ""}
"""Variables that have no key of their own, and the row that they stand in."""


def rows():
    table = PAGE.split("| key |")[1].split("\n\n")[0]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    return {key.strip("`"): dict(zip(PRODUCTS, cells, strict=True)) for key, *cells in lines}


@pytest.mark.parametrize("product", PRODUCTS)
def test_each_variable_stands_in_the_row_of_its_key(product):
    told = {name for cells in rows().values() for name in re.findall(r"[A-Z]+_[A-Z_]+", cells[product])}
    assert told == set(attachables()[product].variables.values())
    for key, variable in attachables()[product].variables.items():
        assert variable in rows()[_UNDER.get(key, key)][product], key


def test_each_key_has_a_row():
    keys = {key for product in attachables().values() for key in product.Part.model_fields}
    assert set(rows()) - {""} == keys


def told_under(section):
    """(key, default, text) of each row."""
    table = PAGE.split(f"| key under `{section}` |")[1].split("\n\n")[0]
    return [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in table.splitlines()[2:]]


def test_each_setting_of_the_interlocks_has_a_row_with_its_default():
    right = []
    for name, part in InterlockSettings.model_fields.items():
        for key, one in type(part.default).model_fields.items():
            shown = "" if one.default is None or one.default == [] else f"`{one.default}`"
            right.append((f"`{name}.{key}`", shown, one.description))
    assert told_under("interlocks") == right
    assert len(right) > 15


@pytest.mark.parametrize(
    ("under", "settings"),
    [
        ("carriers.ssh", SshSettings),
        ("carriers.nomad", NomadSettings),
        ("services.kubernetes", KubernetesPart),
        ("engine.nomad", Workers),
    ],
)
def test_each_setting_has_a_row_with_its_default(under, settings):
    assert told_under(under) == [
        (f"`{key}`", "" if one.is_required() or one.default in (None, {}) else f"`{one.default}`", one.description)
        for key, one in settings.model_fields.items()
    ]


def test_the_policy_for_nomad_as_a_carrier_is_what_the_carrier_asks_for():
    policy = PAGE.split("### By jobs of Nomad")[1].split("```hcl")[1].split("```")[0]
    rights = carrier_rights(Carriers(nomad=NomadSettings()))
    told = {
        ("namespace", "default", one)
        for one in re.findall(r'"([a-z-]+)"', policy.split("capabilities")[1].split("]")[0])
    }
    assert told == {(one.resource, one.name, one.access) for one in rights if one.resource == "namespace"}
    assert all(f'{one.resource} {{ policy = "{one.access}" }}' in policy for one in rights if one.resource == "node")
