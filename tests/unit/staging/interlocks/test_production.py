"""What looks like production is refused, and nothing else is."""

import pytest

from hashidrill.core.errors import InterlockError
from hashidrill.staging.interlocks import production
from hashidrill.staging.interlocks.production import DenyList, Named

pytestmark = pytest.mark.lie

DENY = DenyList.of(["live"], ["eu-1"], ["prod-copy"])


REFUSED = """
    prod prod-eu-1 eu-prod eu-prod01 euProd EUProd PROD consul.prd.example.com production_db Production prod2 2prod
    staging-prod-copy non-prod-prod prod.non-prod
    PRODeu1 euprod1 consulprod01 k8sprod prodeu k8sPRD01 euprd1 eu1PrOd prodengineering myproduction productprod
    prod-reproducer nonprodprod cannotprod stagingprodcopy producti0n-prd
"""
"""The second half passed while only whole words counted."""
NOT_REFUSED = """
    product-search-staging products productsearch reproduction reproducer reproducible productive producer Product
    staging nonprod non-prod nonProd euNonProd pre-prod-2 preprod pre-production byproduct-1 prod-copy procd consul-1
    not_prod pr-od
"""
FALSELY_REFUSED = "sprdata co-production coproduction euprecoprod"
"""Names of something else, refused all the same: a production that is let in is the worse mistake."""


@pytest.mark.parametrize("name", [*REFUSED.split(), *FALSELY_REFUSED.split()])
def test_what_is_called_production_or_could_be_is_denied(name):
    assert DenyList().denies(name)
    assert not DenyList.of([], [], [name.upper()]).denies(name), "unless it is listed whole"


@pytest.mark.parametrize("name", ["", *NOT_REFUSED.split()])
def test_what_is_known_to_be_another_word_is_not(name):
    assert not DENY.denies(name)


@pytest.mark.parametrize(
    "name", ["live", "live-1", "euLive01", "live01", "eu1live", "LIVEeu", "olive-1", "live.non-live"]
)
def test_a_word_of_the_attach_file_counts_where_letters_begin_or_end_with_it(name):
    assert DENY.denies(name)
    assert not DenyList().denies(name)


@pytest.mark.parametrize("name", ["delivery", "non-live", "preLive"])
def test_a_word_of_the_attach_file_in_the_middle_or_denied_does_not(name):
    assert not DENY.denies(name)


def test_a_word_with_digits_counts_too():
    """No name was taken apart into words with digits, so such a word never matched."""
    assert DenyList.of(["p1"], [], []).denies("p1-consul")


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
    [
        {"environment": "production"},
        {"env": "prod"},
        {"Environment": "PROD-EU"},
        {"environment": "live"},
        {"stage": "prod"},
        {"tier": "production"},
        {"consul.stage": "live"},
        {"rack": "euprod1"},
        {"team": "production"},
        {"production": "true"},
        {"is_prod": "yes"},
        {"cluster": "eu-1"},
    ],
)
def test_one_node_that_says_it_is_production_is_enough(meta):
    found = list(DenyList.of([], ["eu-1"], []).troubles([], {"a": {"environment": "staging"}, "b": meta}))
    assert len(found) == 1
    assert found[0].startswith("node b says ")


@pytest.mark.parametrize(
    "meta",
    [
        {"environment": "staging"},
        {"environment": "pre-production"},
        {"env": "nonprod"},
        {"team": "live"},
        {},
        {"environment": "products"},
        {"environment": "non-live"},
        {"production": "false"},
        {"non-prod": "true"},
    ],
)
def test_other_meta_is_not(meta):
    assert not list(DenyList().troubles([], {"a": meta}))


def test_what_a_node_says_is_excused_as_the_message_has_it():
    metas = {"a": {"stage": "prod-copy"}}
    assert list(DenyList.of([], [], ["prod-copy"]).troubles([], metas)), "a name that is excused excuses no node"
    assert not list(DenyList.of([], [], ["Stage: prod-copy"]).troubles([], metas))


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
