"""What looks like production is refused, and nothing else is."""

import pytest

from hashidrill.datacenter.interlocks import production
from hashidrill.datacenter.interlocks.production import DenyList, Named
from hashidrill.errors import InterlockError

pytestmark = pytest.mark.lie

DENY = DenyList.of(["live"], ["eu-1"], ["prod-copy"])


@pytest.mark.parametrize(
    "name",
    ["prod", "prod-eu-1", "eu-prod", "eu-prod01", "euProd", "EUProd", "PROD", "consul.prd.example.com", "production_db",
     "Production", "prod2", "2prod", "staging-prod-copy", "non-prod-prod", "prod.non-prod"],
)  # fmt: skip
def test_what_is_called_production_is_denied(name):
    assert DenyList().denies(name)


@pytest.mark.parametrize(
    "name",
    ["product-search-staging", "products", "reproduction", "staging", "nonprod", "non-prod", "pre-prod-2", "preprod",
     "pre-production", "byproduct-1", "producer", "prod-copy", "olive-1", "procd", "", "consul-1", "not_prod"],
)  # fmt: skip
def test_what_only_has_its_letters_is_not(name):
    assert not DENY.denies(name)


def test_an_attach_file_adds_words_and_names_and_excuses_others():
    assert DENY.denies("live-1")
    assert DENY.denies("EU-1")
    assert not DENY.denies("eu-10")
    assert not DenyList().denies("live-1")
    assert DenyList().denies("prod-copy")


def test_a_name_on_the_list_is_denied_though_another_line_excuses_it():
    assert DenyList.of([], ["blue"], ["blue"]).denies("blue")


@pytest.mark.parametrize(
    "meta",
    [{"environment": "production"}, {"env": "prod"}, {"Environment": "PROD-EU"}, {"environment": "live"}],
)
def test_one_node_that_says_it_is_production_is_enough(meta):
    found = list(DenyList().troubles([], {"a": {"environment": "staging"}, "b": meta}))
    assert len(found) == 1
    assert found[0].startswith("node b says ")


@pytest.mark.parametrize(
    "meta",
    [{"environment": "staging"}, {"environment": "pre-production"}, {"env": "nonprod"}, {"team": "production"}, {},
     {"environment": "products"}, {"environment": "non-live"}],
)  # fmt: skip
def test_other_meta_is_not(meta):
    assert not list(DenyList().troubles([], {"a": meta}))


def test_the_message_says_what_looks_like_it_and_what_to_do():
    names = [Named("datacenter", "staging"), Named("host", "prod-1"), Named("host", "prod-1"), Named("tag", "prd")]
    with pytest.raises(InterlockError) as error:
        production.check(DenyList(), names, {"x": {"environment": "production"}}, "staging.yaml")
    assert str(error.value).startswith(
        "staging.yaml looks like production: host 'prod-1', tag 'prd', node x says environment: production; nothing"
    )
    assert "not_production" in str(error.value)
    assert error.value.exit_code == 2


def test_a_long_list_is_cut_and_counted():
    with pytest.raises(InterlockError, match=r"'prod-4', and 95 more;"):
        production.check(DenyList(), [Named("host", f"prod-{n}") for n in range(100)], {}, "x")
