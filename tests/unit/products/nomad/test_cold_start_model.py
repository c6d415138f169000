"""The model of a cold start says what it was told, and what dominates."""

import pytest

from cold_start_model import Measured, Model, fit, simulate

FREE = {"evaluation_s": 0.0, "place_s": 0.0, "plan_s": 0.0, "commit_s": 0.0, "node_rate": float("inf"), "known_s": 0.0}


def model(**costs):
    return Model(**FREE | costs)


def test_a_fit_finds_the_costs_that_made_the_figures():
    measured = [Measured(n, 0.1 + 0.002 * n, 0.05 + 0.001 * n, 0.5 + 0.1 * n, 0.3) for n in (25, 50, 100, 200)]
    found = fit(measured)
    assert (found.evaluation_s, found.place_s) == pytest.approx((0.1, 0.002))
    assert (found.plan_s, found.commit_s) == pytest.approx((0.05, 0.001))
    assert (found.node_rate, found.known_s) == pytest.approx((10, 0.3))


def test_no_cost_is_below_nothing():
    """Noise may make a large start cheaper than a small one."""
    found = fit([Measured(25, 0.2, 0.2, 1, 0), Measured(200, 0.1, 0.1, 10, 0)])
    assert (found.place_s, found.commit_s) == (0, 0)
    assert found.evaluation_s == pytest.approx(0.15)


def test_one_size_makes_no_line():
    with pytest.raises(ValueError, match="two sizes"):
        fit([Measured(25, 0.1, 0.1, 1, 0)])


@pytest.mark.parametrize(
    ("costs", "jobs", "total_s", "dominates"),
    [
        ({"node_rate": 10}, 1, 100 / 4 / 10, "starts on the nodes"),
        ({"place_s": 0.1}, 1, 10, "evaluations"),
        ({"evaluation_s": 1}, 100, 50, "evaluations"),  # two workers
        ({"plan_s": 1}, 100, 100, "plans"),  # one after the other, whatever the workers do
        ({"commit_s": 0.1}, 10, 10, "plans"),
    ],
)
def test_what_costs_time_dominates(costs, jobs, total_s, dominates):
    found = simulate(model(**costs), 100, nodes=4, jobs=jobs, workers=2)
    assert found.total_s == pytest.approx(total_s)
    assert found.dominates == dominates


def test_nodes_start_while_later_jobs_are_placed():
    """The parts overlap: two jobs, whose plans take 1 s each, and nodes that need 1 s for each job's tasks."""
    found = simulate(model(plan_s=1, node_rate=10), 20, nodes=1, jobs=2)
    assert found.total_s == pytest.approx(3)
    assert found.placed_s == pytest.approx(2)


def test_more_nodes_help_until_the_scheduler_dominates():
    costs = {"place_s": 0.001, "node_rate": 10}
    few, many = (simulate(model(**costs), 10_000, nodes=nodes) for nodes in (3, 300))
    assert (few.dominates, many.dominates) == ("starts on the nodes", "evaluations")
    assert many.total_s < few.total_s / 10


def test_more_jobs_than_tasks_are_refused():
    with pytest.raises(ValueError, match="3 tasks do not make 4 jobs"):
        simulate(model(), 3, nodes=1, jobs=4)
