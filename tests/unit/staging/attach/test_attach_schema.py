"""The JSON Schema of a file of `kind: Attach`: kept current, and of one mind with the reader.
The page on the file of an existing datacenter names every key and every variable, and no other.
"""

import json
import re

import jsonschema
import pytest
from ruamel.yaml import YAML

from attached_estates import FILE
from hashidrill.core.errors import HashidrillError
from hashidrill.core.experiment.schema import DIALECT
from hashidrill.staging.attach.product import attachables
from hashidrill.staging.attach.target import KubernetesPart, attach_schema, check_file, schema_text
from hashidrill.staging.carriers.settings import Carriers, NomadSettings, SshSettings, carrier_rights
from hashidrill.staging.generators.settings import NomadSettings as Workers
from hashidrill.staging.interlocks.settings import InterlockSettings
from places import ROOT

KEPT = ROOT / "experiments" / "schema-attach.json"
CONSUL = '  consul: {address: "https://consul.staging.example:8501", ca_file: ca.pem, token_file: token}\n'
PODS = "  kubernetes: {context: staging, namespace: consul, consul: %s}\n"
GOOD = {
    "agents that are pods": PODS % "{}",
    "pods with labels of their own": PODS % "{servers: {app: consul, release: a}, token_file: token}",
    "pods by themselves": PODS % "",
    "one product": CONSUL,
    "all from the environment": "  consul: {}\n  nomad:\n  vault: {}\n",
    "agents elsewhere": '  consul: {agents: {web-1: "https://10.1.2.3:18501"}, verify: false}\n',
    "interlocks": CONSUL
    + "interlocks: {stop: {within: 5s}, blast_radius: {servers: 1, clients: 10%}, audit: {runs: 9}}\n",
}
_FRAGMENT = r"```yaml\n# fragment: (a|of a) datacenter to attach\n(.*?)```"
BAD = {
    "pods of no product": "  kubernetes: {context: staging, namespace: consul}\n",
    "pods of no context": "  kubernetes: {namespace: consul, consul: {}}\n",
    "labels that are none": PODS % "{servers: consul}",
    "no labels": PODS % "{servers: {}}",
    "a key of pods that cannot be": PODS % "{selector: {app: consul}}",
    "a product that cannot be": "  consol: {}\n",
    "a key that cannot be": "  consul: {adress: x}\n",
    "a token in it": "  consul: {token: x}\n",
    "no product": "  {}\n",
    "a switch that is text": "  consul: {verify: maybe}\n",
    "a file that is a number": "  consul: {ca_file: 7}\n",
    "an interlock that cannot be": CONSUL + "interlocks: {stop: {button: red}}\n",
    "a duration without a unit": CONSUL + "interlocks: {stop: {within: 5}}\n",
    "another section": CONSUL + "loads: {}\n",
}


@pytest.fixture(scope="module")
def validator():
    return jsonschema.Draft202012Validator(attach_schema())


def as_data(text):
    return YAML(typ="safe", pure=True).load(text)


def reads(tmp_path, text):
    path = tmp_path / "staging.yaml"
    path.write_text(text)
    try:
        check_file(path)
    except HashidrillError:
        return False
    return True


def test_the_schema_in_the_repository_is_current():
    current = KEPT.is_file() and json.loads(KEPT.read_text()) == json.loads(schema_text())
    assert current, f"{KEPT} is not current; run: hashidrill schema attach > experiments/schema-attach.json"


def test_it_is_itself_valid():
    jsonschema.Draft202012Validator.check_schema(attach_schema())
    assert attach_schema()["$schema"] == DIALECT


def test_every_reference_leads_somewhere():
    text = json.dumps(attach_schema())
    assert set(re.findall(r'"#/\$defs/([^"]+)"', text)) <= set(attach_schema()["$defs"])


@pytest.mark.parametrize("case", sorted(GOOD))
def test_what_the_reader_takes_it_takes(case, validator, tmp_path):
    text = FILE + GOOD[case]
    assert reads(tmp_path, text)
    assert [error.message for error in validator.iter_errors(as_data(text))] == []


@pytest.mark.parametrize("case", sorted(BAD))
def test_what_the_reader_refuses_it_refuses(case, validator, tmp_path):
    text = FILE + BAD[case]
    assert not reads(tmp_path, text)
    assert list(validator.iter_errors(as_data(text)))


@pytest.mark.parametrize(
    "text",
    [
        FILE.replace("Attach", "Experiment") + CONSUL,
        FILE.replace("v1", "v2") + CONSUL,
        CONSUL,
        FILE.replace("metadata", "meta") + CONSUL,
    ],
)
def test_so_it_is_with_the_head(text, validator, tmp_path):
    text = text if text.startswith("apiVersion") else f"datacenter:\n{text}"
    assert not reads(tmp_path, text)
    assert list(validator.iter_errors(as_data(text)))


def test_every_key_of_every_part_is_described():
    schema = attach_schema()
    parts = {name: schema["$defs"][f"{name}-part"] for name in attachables()}
    for name, part in parts.items():
        assert set(part["properties"]) == set(attachables()[name].Part.model_fields), name
        assert all(about.get("description") for about in part["properties"].values()), name
    assert set(schema["$defs"]["interlocks"]["properties"]) == set(InterlockSettings.model_fields)
    for name, settings in {"SshSettings": SshSettings, "NomadSettings": NomadSettings}.items():
        written = schema["$defs"][name]["properties"]
        assert set(written) == set(settings.model_fields)
        assert all(about.get("description") for about in written.values()), name


def test_the_files_of_the_pages_are_right(validator):
    """Whole files and sections of one, as they stand in the playbooks."""
    found = 0
    for page in ("attach-to-staging.md", "reference-attach.md"):
        page_text = (ROOT / "playbooks" / page).read_text()
        for whole, text in re.findall(_FRAGMENT, page_text, re.DOTALL):
            data = as_data(text)
            if whole == "of a":
                data = {**as_data(FILE + CONSUL), **data}
            errors = [error.message for error in validator.iter_errors(data)]
            assert errors == [] or "..." in text, (page, text, errors)
            found += 1
    assert found >= 4


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
