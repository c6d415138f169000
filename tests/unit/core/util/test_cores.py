"""The CPUs that this process may use: by its affinity, and by the quotas of its control groups."""

import pytest

from hashidrill.core.util.cores import quotas, usable_cores


def files(root, tree):
    for name, text in tree.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


V1 = {"cpu.cfs_quota_us": "{quota}\n", "cpu.cfs_period_us": "20000\n"}


def v1(group, quota):
    return {f"{group}/{name}": text.format(quota=quota) for name, text in V1.items()}


CASES = {
    "no quota": ("0::/", {"cpu.max": "max 100000"}, 8),
    "a container": ("0::/", {"cpu.max": "150000 100000"}, 1.5),
    "a container that sees the path of its host": ("0::/../docker/1", {"cpu.max": "150000 100000"}, 1.5),
    "wider than the machine": ("0::/", {"cpu.max": "1600000 100000"}, 8),
    "a service of systemd": ("0::/a.slice/b.service", {"a.slice/b.service/cpu.max": "50000 100000"}, 0.5),
    "a slice around it": (
        "0::/a.slice/b.service",
        {"a.slice/cpu.max": "50000 100000", "a.slice/b.service/cpu.max": "max 100000"},
        0.5,
    ),
    "the narrowest": (
        "0::/a.slice/b.service",
        {"a.slice/cpu.max": "50000 100000", "a.slice/b.service/cpu.max": "20000 100000"},
        0.2,
    ),
    "another group's": ("0::/a.slice", {"b.slice/cpu.max": "50000 100000", "a.slice/cpu.max": "max 100000"}, 8),
    "v1": ("3:cpuset:/\n1:cpu:/light\n0::/", v1("cpu/light", 3000), 0.15),
    "v1, counted together": ("1:cpu,cpuacct:/light", v1("cpu,cpuacct/light", 3000), 0.15),
    "v1, a container": ("1:cpu,cpuacct:/docker/1", v1("cpu,cpuacct", 3000), 0.15),
    "v1, none": ("1:cpu:/light", v1("cpu/light", -1), 8),
    "nothing to read": ("", {}, 8),
    "nonsense": ("x\n0::/", {"cpu.max": "lots of it"}, 8),
}


@pytest.mark.lie
@pytest.mark.parametrize(("membership", "tree", "cores"), CASES.values(), ids=CASES)
def test_the_usable_cores_are_those_of_the_narrowest_quota(tmp_path, monkeypatch, membership, tree, cores):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    files(tmp_path, {"membership": membership, **{f"groups/{name}": text for name, text in tree.items()}})
    assert usable_cores(tmp_path / "membership", tmp_path / "groups") == cores


def test_a_machine_without_groups_has_all_of_its_cores(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 3})
    assert usable_cores(tmp_path / "none", tmp_path) == 2


USED = {
    "v2": ("0::/a", {"a/cpu.max": "50000 100000", "a/cpu.stat": "usage_usec 2500000\nuser_usec 1\n"}, 2.5),
    "v1": ("1:cpu,cpuacct:/a", {**v1("cpu,cpuacct/a", 3000), "cpu,cpuacct/a/cpuacct.usage": "2500000000\n"}, 2.5),
    "v1, beside it": ("1:cpu:/a", {**v1("cpu/a", 3000), "cpuacct/a/cpuacct.usage": "2500000000\n"}, 2.5),
    "v1, not counted": ("1:cpu:/a", v1("cpu/a", 3000), None),
    "v2, not counted": ("0::/a", {"a/cpu.max": "50000 100000", "a/cpu.stat": "nr_periods 1\n"}, None),
}


@pytest.mark.parametrize(("membership", "tree", "used_s"), USED.values(), ids=USED)
def test_a_group_says_what_all_of_its_processes_have_used(tmp_path, membership, tree, used_s):
    files(tmp_path, {"membership": membership, **{f"groups/{name}": text for name, text in tree.items()}})
    (quota,) = quotas(tmp_path / "membership", tmp_path / "groups")
    assert quota.used_s() == used_s
