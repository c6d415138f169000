"""No secret survives a redactor, in any form; what is no secret survives it unchanged."""

import base64
import json
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from hashidrill.core.util.redaction import MARK, SHORTEST, Redactor, fingerprint, is_secret_name

TOKEN = 'b1gs-3cr/t+tok=n 4ü"x'
_NAMES = """
encrypt token tokens acl_token CONSUL_HTTP_TOKEN VAULT_TOKEN X-Consul-Token x-vault-token password db_password
secret client_secret SecretID secret_id private_key PrivateKey Authorization AWS_SECRET_ACCESS_KEY
circonus_api_token initial_management_token CONSUL_HTTP_AUTH gossip_key unseal_keys api-key apiKey passphrase
credentials registry.password
"""
NAMES = _NAMES.split()
_NO_NAMES = """
token_ttl tokenTTL acl.token_ttl enable_token_replication enable_token_persistence key_file token_file
encrypt_verify_incoming key keys kv-writes PWD PATH node_name secret_name accessor_id AccessorID log_level rate
monkey - tokenizer max_password_length tokens.latency secrets.errors secrets.level
"""
NO_NAMES = [*_NO_NAMES.split(), ""]

letters = st.characters(exclude_categories=("Cs", "Cc", "Cn", "Co", "Cf", "Zl", "Zp"))
secrets = st.text(letters, min_size=SHORTEST, max_size=60).filter(
    lambda text: (
        text == text.strip()
        and text not in MARK
        and "[redacted" not in text
        and len(set(text)) > 3
        and text.strip("\\\"' ") not in {"", "null", "~", "true", "false"}
    )
)
plain = st.text("abcdefghijklmnopqrstuvwxyz ABCDEF 0123456789 _/üß", max_size=40)
keys = st.sampled_from(["name", "value", "kv-writes", "node_meta", "datacenter", "rate", "measured", "host"])
structures = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | plain,
    lambda below: st.lists(below, max_size=4) | st.dictionaries(keys, below, max_size=4),
    max_leaves=12,
)


def forms(secret):
    encoded = secret.encode()
    yield secret
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield json.dumps(json.dumps(secret)[1:-1])[1:-1]
    yield quote(encoded)
    yield quote(encoded, safe="")
    yield quote_plus(encoded)
    yield base64.b64encode(encoded).decode().rstrip("=")
    yield base64.urlsafe_b64encode(encoded).decode().rstrip("=")


def seen(secret, text):
    return [form for form in forms(secret) if len(form) >= SHORTEST and form in text]


@pytest.mark.parametrize("name", NAMES)
def test_what_stands_under_this_name_is_a_secret(name):
    assert is_secret_name(name)


@pytest.mark.parametrize("name", NO_NAMES)
def test_what_stands_under_this_name_is_none(name):
    assert not is_secret_name(name)


@pytest.mark.long
@pytest.mark.lie
@given(secrets, st.sampled_from(["token", "encrypt", "password", "private_key"]), structures, plain, plain)
def test_no_secret_survives_under_its_name_or_anywhere_else(secret, name, rest, before, after):
    redactor = Redactor()
    places = [f"{before}{form}{after}" for form in forms(secret)]
    inside = [base64.b64encode(head + secret.encode() + b"..").decode() for head in (b"", b"u", b"us", b"user:")]
    places += [base64.b64encode(f"{before}{secret}{after}".encode()).decode(), f"/v1/kv/a?token={quote(secret)}&x=1"]
    cleaned = redactor.clean({"rest": rest, "acl": {name: secret, "more": {name: [secret]}}, "said": places, secret: 1})
    written = json.dumps(cleaned) + json.dumps(cleaned, ensure_ascii=False)
    assert not seen(secret, written)
    assert cleaned["acl"][name] == MARK
    for text in inside:  # only what stands before and after is left, and the characters that it has a part in
        assert len(redactor.text(text).replace(MARK, "")) <= len(text) - 4 * len(secret.encode()) // 3 + 3
    assert cleaned["rest"] == redactor.data(rest)


@pytest.mark.long
@pytest.mark.lie
@given(structures)
def test_what_is_no_secret_survives_unchanged(value):
    assert Redactor(["quite-another-secret"]).clean(value) == value


@pytest.mark.long
@given(plain, plain, secrets)
def test_text_around_a_secret_survives(before, after, secret):
    assume(secret not in before + after and secret not in before + MARK + after)
    assert Redactor([secret]).known(f"{before}\n{secret}\n{after}") == f"{before}\n{MARK}\n{after}"


@settings(max_examples=50)
@given(secrets, st.sampled_from(["'", '"', "|", ">"]), plain)
def test_no_secret_survives_in_yaml_and_the_document_stays_one(secret, style, words):
    quoted = {
        "'": "'" + secret.replace("'", "''") + "'",
        '"': json.dumps(secret),
        "|": "|\n          " + secret,
        ">": ">-\n          " + secret,
    }[style]
    text = (
        f"# {words}\nconfig:\n    acl:\n      tokens:\n        agent: {quoted}\n        default: {json.dumps(secret)}\n"
        f"    note: {json.dumps('with ' + secret)}\n    log_level: INFO # kept\n"
        f"command: [curl, --token, {json.dumps(secret)}]\n"
    )
    redacted = Redactor().yaml(text)
    document = YAML(typ="safe").load(redacted)
    assert not seen(secret, redacted)
    assert not seen(secret, json.dumps(document, ensure_ascii=False))
    assert document["config"]["acl"]["tokens"] == {"agent": MARK, "default": MARK}
    assert document["config"]["log_level"] == "INFO"
    assert "# kept" in redacted


@pytest.mark.long
@given(plain, structures)
def test_yaml_without_secrets_is_kept_to_the_letter(words, value):
    text = f"# {words}\nname: {json.dumps(value)}   # as it is\nlist: [a, 'b', \"c\"]\n"
    assert Redactor(["quite-another-secret"]).yaml(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "GET /v1/kv/a?token={}&wait=1s",
        "curl -H 'X-Consul-Token: {}' http://10.73.0.11:8500",
        "curl -H X-Consul-Token:{}",
        "Authorization: Bearer {}",
        "consul kv get -token={} a",
        "consul kv get -token {} a",
        "app --db-password {} --verbose",
        'level=INFO message="login" token={}',
        '{{"acl": {{"SecretID": "{}"}}}}',
        'body: "{{\\"token\\": \\"{}\\"}}"',
        'encrypt = "{}"',
        "cmd=\"sh -c 'VAULT_TOKEN={} app'\"",
        "http://user:{}@127.0.0.1:8500/",
        "retry_join: provider=aws secret_access_key={} tag=a",
    ],
)
def test_a_short_secret_is_seen_by_what_stands_before_it(text):
    """Too short to be looked for by its value: only its name gives it away."""
    assert Redactor().text(text.format("hun7er")) == text.format(MARK)


@pytest.mark.parametrize(
    "text",
    [
        "token does not exist: ACL not found",
        "no leader is known to a majority of the servers",
        "GET /v1/kv/a?index=7&wait=300s&consistent=",
        "acl.token_ttl=30s token_file=/etc/consul.d/token",
        "fsync 500ms (measured 512ms), rate: 50/s",
        "error: dial tcp 10.73.0.11:8300: i/o timeout",
    ],
)
def test_what_only_speaks_of_secrets_survives(text):
    assert Redactor(["quite-another-secret"]).text(text) == text


def test_a_private_key_is_seen_by_its_form():
    pem = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIB\n-----END EC PRIVATE KEY-----"
    assert Redactor().text(f"key:\n{pem}\nend") == f"key:\n{MARK}\nend"


def test_a_vault_token_is_seen_by_its_form():
    assert Redactor().text("got hvs.CAESIJlWh7vYq0abcdefghij for it") == f"got {MARK} for it"


def test_the_environment_is_asked_by_the_names_of_its_variables():
    redactor = Redactor()
    redactor.learn_environment(
        {"CONSUL_HTTP_TOKEN": "aaaa-1111", "PWD": "/home/me/project", "CONSUL_HTTP_AUTH": "me:pass-word-9"}
    )
    assert redactor.secrets == ["aaaa-1111", "me:pass-word-9", "pass-word-9"]


def test_numbers_and_switches_under_a_telling_name():
    assert Redactor().data({"password": 1234, "token": True, "secret": None}) == {
        "password": MARK,
        "token": True,
        "secret": None,
    }


def test_redacting_twice_changes_nothing():
    redactor = Redactor()
    texts = [f"?token={TOKEN} and {TOKEN}", "X-Consul-Token: abc", "Authorization: Bearer abc", "http://me:abc@host"]
    once = redactor.clean({"token": TOKEN, "texts": texts})
    assert redactor.clean(once) == once
    assert redactor.secrets == Redactor(redactor.secrets).secrets


def test_a_file_is_copied_without_secrets_and_for_its_owner_alone(tmp_path):
    source, target = tmp_path / "a.log", tmp_path / "b.log"
    source.write_bytes(f"one {TOKEN}\n\xff two\r\nthree".encode("latin-1"))
    Redactor([TOKEN.encode("latin-1").decode("utf-8", "surrogateescape"), TOKEN]).file(source, target)
    assert target.read_bytes() == f"one {MARK}\n\xff two\r\nthree".encode("latin-1")
    assert target.stat().st_mode & 0o777 == 0o600


def test_a_fingerprint_tells_values_apart_and_nothing_else():
    assert fingerprint("one") == fingerprint("one") != fingerprint("two")
    assert "one" not in fingerprint("one")


@given(secrets, st.sampled_from(["token", "encrypt"]), st.sampled_from(["", "  bad: [", "\tx: 1"]))
def test_an_excerpt_keeps_its_length_and_shows_no_secret_even_of_what_is_no_yaml(secret, name, broken):
    text = f"acl:\n  {name}: {json.dumps(secret)}\nrate: 5/s\n{broken}\n"
    masked = Redactor().masked(text)
    assert len(masked) == len(text)
    assert not seen(secret, masked)
    assert "rate: 5/s" in masked


_OF_LOADS = """
load:
  tokens: {kind: vault.token.churn, rate: 5/s}
  secrets: {kind: vault.kv.write, rate: 20/s, token: LOADS-OWN}
clients:
  passwords: {command: [python, client.py, --token, CLIENTS-OWN]}
datacenter:
  consul: {config: {acl: {tokens: {initial_management: CONFIGURED}}}}
"""
_REAL = ("LOADS-OWN", "CLIENTS-OWN", "CONFIGURED")


@pytest.mark.lie
@pytest.mark.parametrize("how", ["yaml", "data"])
def test_the_names_of_loads_and_clients_are_no_secrets_and_the_real_ones_below_them_are(how):
    redactor = Redactor()
    written = (
        redactor.yaml(_OF_LOADS) if how == "yaml" else json.dumps(redactor.clean(YAML(typ="safe").load(_OF_LOADS)))
    )
    for kept in ("vault.token.churn", "5/s", "vault.kv.write", "20/s", "client.py"):
        assert kept in written
    assert set(redactor.secrets) == {*_REAL}
    assert not any(secret in written for secret in _REAL)
    assert redactor.text("tokens is a vault.token.churn at 5/s") == "tokens is a vault.token.churn at 5/s"


@pytest.mark.parametrize(
    "value",
    [
        {"load": {"password": "planted-secret"}},
        {"load": "planted-secret", "token": "planted-secret"},
        {"load": {"tokens": ["planted-secret"]}},
        {"load": {"a": {"tokens": {"b": "planted-secret"}}}},
        {"secrets": {"load": {"a": {"b": "planted-secret"}}}},
    ],
)
def test_what_is_no_load_hides_behind_no_name(value):
    assert "planted-secret" not in json.dumps(Redactor().clean(value))
