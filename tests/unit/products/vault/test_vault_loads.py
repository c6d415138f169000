"""Outcomes of requests to Vault, and what the loads take for lost, kept and wrongly kept."""

import json

import pytest

import virtual_time
from hashidrill.core.errors import AttachError, WaitTimeoutError
from hashidrill.core.loads.answer import Answer
from hashidrill.core.loads.base import LoadContext
from hashidrill.products.vault.loads import kv, tokens
from hashidrill.products.vault.loads.base import listed_names, read_reply, write_reply
from hashidrill.products.vault.loads.kv import KvRead, KvWrite, _accepted, identity_of
from hashidrill.products.vault.loads.tokens import STILL_VALID, TokenChurn
from load_clients import Client, runs_for


def context(**more):
    more = {"access": {"VAULT_TOKEN": "t"}, **more}
    return LoadContext(endpoints=["http://10.0.0.1:8200", "http://10.0.0.2:8200"], run_id="r1", **more)


def load(kind, name="secrets", **params):
    return kind(name, kind.Params.model_validate({"rate": "10/s", **params}), context())


@pytest.mark.lie
@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (Answer(200, b"{}"), "ok"),
        (Answer(204), "ok"),
        (Answer(403, b'{"errors":["permission denied"]}'), "fail"),
        (Answer(429), "fail"),
        (Answer(400), "fail"),
        (Answer(408), "unknown"),
        (Answer(500), "unknown"),
        (Answer(503, b'{"errors":["Vault is sealed"]}'), "unknown"),
        (Answer(0, error="no answer within 30s"), "unknown"),
        (Answer(0, error="refused", sent=False), "fail"),
    ],
)
def test_a_write_that_may_have_been_applied_is_never_called_failed(answer, outcome):
    assert write_reply(answer).outcome == outcome


def test_a_read_is_ok_only_with_the_secret_itself():
    assert read_reply(Answer(200), "r.1").value == "r.1"
    assert read_reply(Answer(200, b"{}"), None).outcome == "fail"
    assert read_reply(Answer(404), None).outcome == "fail"


def test_a_vault_without_an_engine_for_secrets_is_told_at_once_with_the_command():
    with pytest.raises(AttachError, match="`vault secrets enable -path=hashidrill -version=2 kv`"):
        _accepted(Answer(404, b'{"errors":["no handler for route \\"hashidrill/data/a\\". route entry not found."]}'))
    assert _accepted(Answer(404, b'{"errors":[]}')) is None


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"data": null}', b'{"data": {"data": {"id": 3}}}', b"<html>"])
def test_an_answer_without_our_secret_has_no_identity(body):
    assert identity_of(Answer(200, body)) is None


def test_an_identity_is_that_of_the_write():
    assert identity_of(Answer(200, kv._secret("r1.7", 64))) is None, "what is written is not what is read"
    assert identity_of(Answer(200, json.dumps({"data": {"data": {"id": "r1.7"}}}).encode())) == "r1.7"


def test_nine_of_ten_secrets_are_written_once_and_none_where_another_run_wrote():
    writes = load(KvWrite)
    keys = [writes._plan(n)[0] for n in range(1000)]
    once = [key for key in keys if "/once/" in key]
    assert len(once) == len(set(once)) == 900
    assert all(key.startswith("secrets/r1/") for key in keys)


@pytest.mark.parametrize("kind", [KvWrite, KvRead, TokenChurn])
def test_a_load_without_a_token_or_without_servers_says_so(kind):
    params = kind.Params.model_validate({"rate": "1/s"})
    with pytest.raises(ValueError, match="has no token: its `via` must name Vault's servers"):
        kind("secrets", params, context(access={}))
    with pytest.raises(ValueError, match="has no server to talk to"):
        kind("secrets", params, LoadContext(endpoints=[], access={"VAULT_TOKEN": "t"}))


@pytest.mark.parametrize("params", [{"rate": "0/s"}, {"value": "300KiB"}, {"once": "120%"}, {"timeout": "0s"}])
def test_parameters_that_make_no_sense_are_refused(params):
    with pytest.raises(ValueError, match=r"rate|secret|once|timeout"):
        load(KvWrite, **params)


def sampled(told):
    return lambda *sample: told.append(sample)


@pytest.fixture
def written(monkeypatch):
    """Twenty secrets: `there` can be read, and `listed` is what the storage lists."""
    told = []
    made = KvWrite("secrets", KvWrite.Params.model_validate({"rate": "10/s"}), context(emit_sample=sampled(told)))
    keys = [made._plan(n)[0] for n in range(20)]
    made.there, made.listed, made.told = set(keys), set(keys), told

    async def insist(_client, _endpoints, _method, path, accept, *, within_s, params=None):
        key = path.partition("/data/")[2]
        if key:
            body = {"data": {"data": {"id": f"id of {key}"}}}
            return accept(Answer(200, json.dumps(body).encode()) if key in made.there else Answer(404))
        assert params == {"list": "true"}
        place = path.partition("/metadata/")[2] + "/"
        names = [key.removeprefix(place) for key in sorted(made.listed) if key.startswith(place)]
        return accept(Answer(200, json.dumps({"data": {"keys": names}}).encode()) if names else Answer(404))

    monkeypatch.setattr(kv, "insist", insist)
    made.keys = keys
    return made


def test_secrets_that_are_read_and_listed_are_there(written):
    assert read(written) == {key: f"id of {key}" for key in written.keys}


@pytest.mark.lie
def test_a_secret_that_is_read_and_not_listed_is_missing_and_counted(written):
    """The active server read it from memory: its storage lost it."""
    lost = written.keys[3]
    written.listed.remove(lost)
    assert [key for key, value in read(written).items() if value is None] == [lost]
    assert [sample[1] for sample in written.told] == [1.0]


def test_a_secret_that_is_listed_and_cannot_be_read_is_missing(written):
    written.there.remove(written.keys[3])
    assert [key for key, value in read(written).items() if value is None] == [written.keys[3]]
    assert [sample[1] for sample in written.told] == [0.0]


@pytest.mark.parametrize("body", [b"", b"{}", b'{"data": {"keys": 3}}', b"<html>"])
def test_an_answer_that_lists_nothing_is_asked_for_again(body):
    assert listed_names(Answer(200, body)) is None
    assert listed_names(Answer(503)) is None


# tokens

KNOWN, UNKNOWN = Answer(200, b"{}"), Answer(400, b'{"errors":["1 error occurred:\\n\\t* invalid accessor\\n\\n"]}')


@pytest.fixture
def churn(monkeypatch):
    """Tokens 0 to 3, of which every second was to be revoked, and was; `known` are those that Vault still knows."""
    made = load(TokenChurn, "tokens", revoked="50%")
    planned = [made._plan(n) for n in range(4)]
    made._accessors = {n: f"accessor-{n}" for n in range(4)}
    made.known, made.denied, made.refused, made.unlisted = {"accessor-0", "accessor-2"}, set(), False, set()

    async def insist(_client, _endpoints, _method, path, accept, *, within_s, body=None, params=None):
        if params:
            assert (path, params) == ("/v1/auth/token/accessors", {"list": "true"})
            return accept(Answer(200, json.dumps({"data": {"keys": sorted(made.known - made.unlisted)}}).encode()))
        if path.endswith("lookup-self"):
            if made.refused:
                raise WaitTimeoutError("our own token is refused")
            return accept(KNOWN)
        if json.loads(body)["accessor"] in made.denied:
            return accept(Answer(403, b'{"errors":["permission denied"]}'))
        return accept(KNOWN if json.loads(body)["accessor"] in made.known else UNKNOWN)

    monkeypatch.setattr(tokens, "insist", insist)
    made.right = dict(planned)
    return made


def read(churn):
    return virtual_time.run(churn.final_reads())


def test_every_second_token_is_to_be_revoked(churn):
    assert churn._to_revoke == {1, 3}


def test_tokens_that_stay_are_known_and_revoked_ones_are_not(churn):
    assert read(churn) == churn.right


@pytest.mark.lie
def test_a_token_that_vault_lost_is_missing(churn):
    churn.known.remove("accessor-2")
    assert read(churn)["tokens/2"] is None


@pytest.mark.lie
def test_a_token_that_is_known_and_not_listed_is_missing(churn):
    """The active server knows it from memory: its storage lost it."""
    churn.unlisted.add("accessor-2")
    assert read(churn)["tokens/2"] is None
    assert read(churn)["tokens/0"] == churn.right["tokens/0"]


@pytest.mark.lie
def test_a_revoked_token_that_is_still_known_is_what_nobody_wrote(churn):
    churn.known.add("accessor-3")
    assert read(churn)["tokens/3"] == STILL_VALID


@pytest.mark.lie
def test_an_accessor_whose_token_is_gone_is_lost_though_vault_calls_that_a_permission(churn):
    """A restore brought back the accessor, and not the token."""
    churn.denied.add("accessor-2")
    assert read(churn)["tokens/2"] is None


def test_a_403_for_our_own_token_says_nothing_about_theirs(churn):
    churn.denied.add("accessor-2")
    churn.refused = True
    with pytest.raises(WaitTimeoutError):
        read(churn)


def test_a_server_that_cannot_answer_says_nothing_about_a_token():
    assert tokens._known(Answer(503, b'{"errors":["Vault is sealed"]}')) is None


def test_a_token_whose_lease_is_gone_is_not_known():
    assert tokens._known(Answer(403, b'{"errors":["1 error occurred:\\n\\t* bad token\\n\\n"]}')) is False


async def test_a_token_is_recorded_as_the_lease_that_vault_granted_and_not_as_it_was_asked_for():
    params = TokenChurn.Params.model_validate({"rate": "10/s", "ttl": "2h", "revoked": "50%"})

    class Tokens(Client):
        async def request(self, _method, url, **_):
            made_one = {"auth": {"accessor": "a", "lease_duration": 600, "client_token": "hvs.secret"}}
            return Answer(200, json.dumps(made_one).encode()) if url.endswith("create") else Answer(204)

    made = TokenChurn("leases", params, context(clock=virtual_time.VirtualClock()))
    made.client = Tokens
    told = await runs_for(made, 0.95)
    leases = [tokens.Lease.of(operation.detail) for operation in told if operation.outcome == "ok"]
    assert [lease.ttl_s for lease in leases] == [600.0] * len(leases)
    assert [lease.revoked for lease in leases[:4]] == [False, True, False, True]
    assert "hvs.secret" not in str(told)
