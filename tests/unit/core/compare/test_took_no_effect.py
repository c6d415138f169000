"""Whether what differs between two runs reached their agents: by what the runs say that they started."""

import pytest

from hashidrill.core.compare.judged import ran_the_same, took_no_effect
from hashidrill.testing.recordings import RecordingBuilder


@pytest.fixture
def run(tmp_path):
    """A recording of `datacenter`, of whose run.json `info` is a part."""

    def run_(name, datacenter, **info):
        built = RecordingBuilder(tmp_path / name, name="x").variant("side", datacenter=datacenter)
        return built.fault("noop", at=10, until=30).run_info(**info).build()

    return run_


@pytest.mark.lie
@pytest.mark.parametrize("product", ["nomad", "vault"])
def test_agents_of_each_product_are_looked_at(run, product):
    """Not those of Consul, which is beneath them, or not there at all."""

    def sides(*started):
        return [
            run(
                f"{index}-{value}",
                {product: {"config": {"limits": {"x": value}}}},
                config={"consul-1": {"server": True}},
                **{product: {"config": {"host-1": {"limits": {"x": got}}}}},
            )
            for index, (value, got) in enumerate(zip((1, 2), started, strict=True))
        ]

    assert "config.limits.x took no effect" in ran_the_same(*sides(1, 1))
    assert ran_the_same(*sides(1, 2)) == ""


@pytest.mark.lie
def test_a_version_is_the_binary_that_ran_whatever_it_is_called(run):
    def side(version, sha256):
        return run(
            f"{version}-{sha256}",
            {"consul": {"version": version}},
            versions={"consul": version},
            binaries={"consul": {"path": f"/bin/{version}/consul", "sha256": sha256}},
        )

    assert "datacenter.consul.version took no effect" in took_no_effect(side("1.10.3", "a"), side("1.22.2", "a"))
    assert took_no_effect(side("1.10.3", "a"), side("1.22.2", "b")) == ""


def test_what_a_run_does_not_say_may_have_been_different(run):
    one, other = (run(name, {"nomad": {"config": {"x": name}}}) for name in ("a", "b"))
    assert took_no_effect(one, other) == ""


def test_a_long_list_of_keys_is_cut(run):
    config = {"consul-1": {"server": True}}
    one, other = (run(f"{n}", {"consul": {"config": {f"k{i}": n for i in range(9)}}}, config=config) for n in (1, 2))
    assert "k3 and 5 more took no effect" in took_no_effect(one, other)
