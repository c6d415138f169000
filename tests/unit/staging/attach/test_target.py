"""A file of `kind: Attach` and the variables of the products' command lines: who wins, what is refused and hidden."""

import copy
import json
import pickle

import pytest

from attached_estates import TOKEN, attach_file
from hashidrill.core.errors import AttachError, ExperimentError
from hashidrill.core.util.redaction import MARK
from hashidrill.core.util.tls import Tls
from hashidrill.staging.attach.http import Login, Secret
from hashidrill.staging.attach.target import AttachTarget, read_target

OTHER = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def read(tmp_path):
    return lambda body, **environ: read_target(attach_file(tmp_path, body), environ)


def test_what_the_file_leaves_out_comes_from_the_variables_of_the_command_line(read):
    login = read(
        "  consul: {}\n",
        CONSUL_HTTP_ADDR="consul.example:8501",
        CONSUL_HTTP_SSL="true",
        CONSUL_HTTP_TOKEN=OTHER,
        CONSUL_NAMESPACE="drill",
        CONSUL_PARTITION="p1",
        CONSUL_TLS_SERVER_NAME="server.dc1.consul",
        CONSUL_HTTP_SSL_VERIFY="false",
    ).logins["consul"]
    assert login.address == "https://consul.example:8501"
    assert login.tls == Tls(server_name="server.dc1.consul", verify=False)
    assert login.headers == {"X-Consul-Namespace": "drill", "X-Consul-Partition": "p1", "X-Consul-Token": OTHER}
    assert (login.token_from, login.said) == ("the variable CONSUL_HTTP_TOKEN", "namespace drill, partition p1")


def test_the_file_wins_over_the_variables(read):
    body = '  consul: {address: "https://a.example:8501", token_file: token, verify: true}\n'
    login = read(body, CONSUL_HTTP_ADDR="b.example:8500", CONSUL_HTTP_TOKEN=OTHER, CONSUL_HTTP_SSL_VERIFY="0").logins[
        "consul"
    ]
    assert (login.address, login.token.reveal(), login.tls.verify) == ("https://a.example:8501", TOKEN, True)


def test_a_token_file_goes_before_a_token_among_the_variables_as_consul_has_it(read, tmp_path):
    (tmp_path / "other").write_text(OTHER)
    login = read("  consul: {}\n", CONSUL_HTTP_TOKEN=TOKEN, CONSUL_HTTP_TOKEN_FILE=str(tmp_path / "other")).logins[
        "consul"
    ]
    assert login.token.reveal() == OTHER


def test_nomad_takes_namespace_and_region_as_parameters_and_vault_its_namespace_as_a_header(read, tmp_path):
    (tmp_path / ".vault-token").write_text("hvs.of-the-home-directory\n")
    logins = read(
        "  nomad: {namespace: drill}\n  vault: {}\n",
        NOMAD_ADDR="https://n:4646",
        NOMAD_REGION="eu",
        NOMAD_TOKEN=OTHER,
        NOMAD_SKIP_VERIFY="true",
        VAULT_NAMESPACE="team",
        HOME=str(tmp_path),
    ).logins
    assert logins["nomad"].params == {"namespace": "drill", "region": "eu"}
    assert (logins["nomad"].headers, logins["nomad"].tls.verify) == ({"X-Nomad-Token": OTHER}, False)
    assert logins["vault"].headers == {"X-Vault-Namespace": "team", "X-Vault-Token": "hvs.of-the-home-directory"}
    assert logins["vault"].token_from == f"the file {tmp_path}/.vault-token"


def test_a_product_that_the_file_does_not_name_is_not_attached_whatever_the_variables_say(read):
    assert list(read("  consul: {}\n", NOMAD_ADDR="http://n:4646", VAULT_ADDR="http://v:8200").logins) == ["consul"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("  consul: {adress: x}\n", "unknown key 'adress': did you mean address?"),
        ("  consol: {}\n", "cannot be attached: did you mean consul?"),
        ("  consul: {token: abc}\n", "a token must not be in this file; name the"),
        ("  consul: {verify: 3}\n", "expected true or false, got 3"),
        ("  sample: {}\n", "cannot be attached: there are: consul, kubernetes, nomad,"),
    ],
)
def test_a_mistake_in_the_file_is_shown_with_its_line(read, body, said):
    with pytest.raises(ExperimentError) as caught:
        read(body)
    assert said in " ".join(str(caught.value).split())  # folded where the length of the path has it
    assert "staging.yaml:5:" in str(caught.value)


def test_another_kind_of_file_gets_one_message(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("apiVersion: hashidrill/v1\nkind: Experiment\n")
    with pytest.raises(ExperimentError, match="not an Attach file: such a file begins with"):
        read_target(path, {})


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"CONSUL_HTTP_ADDR": "unix:///run/consul.sock"}, "must start with http:// or https://"),
        ({"CONSUL_HTTP_ADDR": "http://me:secret@consul:8500"}, "without a name or password in it"),
        ({"CONSUL_HTTP_ADDR": "http://consul:port"}, "write a URL like https://consul.staging.example:8500"),
        ({"CONSUL_HTTP_ADDR": "c:1", "CONSUL_HTTP_SSL": "maybe"}, "HTTP_SSL: expected true or false, got 'maybe'"),
        ({"CONSUL_HTTP_TOKEN_FILE": "/nowhere/token"}, "/nowhere/token: the token of consul cannot be read: No such"),
        ({"CONSUL_CACERT": "/nowhere/ca.pem"}, "/nowhere/ca.pem: the CA certificate cannot be used: No such file"),
        ({"CONSUL_CLIENT_KEY": "/nowhere/key.pem"}, "/nowhere/key.pem: this client key has no certificate"),
    ],
)
def test_a_variable_that_cannot_be_used_gets_one_message(read, environ, said):
    with pytest.raises(AttachError) as caught:
        read("  consul: {}\n", **environ)
    assert said in str(caught.value)
    assert "secret@" not in str(caught.value) or "me:secret" not in str(caught.value)


def test_an_empty_token_file_is_a_mistake_and_not_no_token(read, tmp_path):
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(AttachError, match="expected the token of consul and nothing else"):
        read("  consul: {token_file: empty}\n")


def test_relative_paths_are_relative_to_the_file(tmp_path):
    (tmp_path / "deep").mkdir()
    path = attach_file(tmp_path / "deep", "  consul: {token_file: token}\n")
    assert read_target(path, {}).logins["consul"].token_from == f"the file {tmp_path}/deep/token"


def test_a_token_is_seen_only_by_whoever_reveals_it(read):
    target = read("  consul: {token_file: token}\n")
    login = target.logins["consul"]
    for text in (repr(target), str(login), f"{login.token}", repr(login)):
        assert TOKEN not in text
    assert MARK in repr(login)
    assert target.secrets() == [TOKEN]
    with pytest.raises(TypeError):
        json.dumps(login.token)
    with pytest.raises(TypeError):
        pickle.dumps(login.token)
    with pytest.raises(TypeError):
        copy.deepcopy(login.token)


def test_a_target_is_handed_over_whole_to_a_process_of_ours(read):
    target = read("  consul: {token_file: token, agents: {consul-2: 'https://10.0.0.2:9'}}\n").saying("breaks-quorum")
    again = AttachTarget.received(json.loads(json.dumps(target.handed_over())))
    assert again.handed_over() == target.handed_over()
    assert again.said == {"breaks-quorum"}
    assert again.logins["consul"].url_of("consul-2", "10.0.0.2") == "https://10.0.0.2:9"
    assert isinstance(again.logins["consul"].token, Secret)


@pytest.mark.parametrize(
    ("address", "host", "url"),
    [
        ("https://lb.example:8501", "10.0.0.7", "https://10.0.0.7:8501"),
        ("http://127.0.0.1:8500", "fd00::7", "http://[fd00::7]:8500"),
    ],
)
def test_an_agents_own_api_is_at_its_address_and_the_port_of_the_one_that_was_given(address, host, url):
    assert Login("consul", address).url_of("a", host) == url
