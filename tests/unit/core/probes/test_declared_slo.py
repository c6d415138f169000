"""slo probes: OpenSLO files as probes, what is refused of them by name and line, and that no lie of a server counts."""

import httpx2
import pytest
from test_declared_http import HOSTS, Server, hang, looked, refuse, reply, vector

from hashidrill.core.errors import ExperimentError
from hashidrill.core.experiment.loader import resolve
from hashidrill.core.experiment.resolved import ResolvedExperiment
from hashidrill.core.experiment.without_faults import without_faults
from hashidrill.core.probes.slo import SloParams, SloProbe

EXPERIMENT = """\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {name: mine, title: Mine, why: It shows}
load: {kv-writes: {kind: consul.kv.write, rate: 50/s}}
probes:
  checkout: {kind: slo, url: "http://prometheus:9090", slo: slos/checkout.yaml}
steady_state: {require: ["kv-writes.errors < 1%"]}
method: [{fault: noop, on: "consul:leader", for: 20s}]
recovery: {for: 20s}
expect: [{slo_met: {probe: checkout, budget: 5%}}]
"""
SLO = """\
apiVersion: openslo/v1
kind: SLO
metadata: {name: checkout, displayName: Checkout}
spec:
  service: shop
  indicator:
    metadata: {name: answered}
    spec:
      ratioMetric:
        counter: true
        good:
          metricSource: {type: Prometheus, spec: {query: 'sum(http_requests_total{code!~"5.."})'}}
        total:
          metricSource: {type: Prometheus, spec: {query: sum(http_requests_total)}}
  timeWindow: [{duration: 28d, isRolling: true}]
  budgetingMethod: Occurrences
  objectives: [{displayName: Fine, target: 0.99}]
"""
APART = SLO.partition("  indicator:")[0] + "  indicatorRef: answered\n" + SLO[SLO.index("  timeWindow") :]
SLI = """\
---
apiVersion: openslo/v1
kind: SLI
metadata: {name: answered}
spec:
  thresholdMetric:
    metricSource: {metricSourceRef: mine, spec: {query: latency}}
---
# where it is
apiVersion: openslo/v1
kind: DataSource
metadata: {name: mine}
spec: {type: Prometheus, connectionDetails: {url: http://elsewhere}}
"""
THRESHOLD = APART.replace("target: 0.99", "targetPercent: 95, op: lte, value: 0.3")


@pytest.fixture
def written(tmp_path):
    def write(slo=SLO, experiment=EXPERIMENT):
        (tmp_path / "slos").mkdir(exist_ok=True)
        (tmp_path / "slos/checkout.yaml").write_text(slo)
        path = tmp_path / "mine.yaml"
        path.write_text(experiment)
        return resolve(path)

    return write


def test_a_file_is_part_of_the_experiment_and_its_recording(written):
    resolved = written()
    again = ResolvedExperiment.from_data(resolved.to_data())
    slo = again.experiment.probes["checkout"].parameters.slo
    assert (slo.metadata.name, slo.window_s, round(slo.bad_share, 6)) == ("checkout", 28 * 86400, 0.01)
    assert any(name.endswith("slos/checkout.yaml") for name in resolved.provenance.extends)
    assert "ratioMetric" in resolved.text
    assert without_faults(resolved).experiment.expect[-1].params["condition"].startswith("checkout.good >=")


def test_an_indicator_and_a_data_source_may_be_documents_of_their_own(written):
    slo = written(THRESHOLD + SLI).experiment.probes["checkout"].parameters.slo
    assert slo.indicator.queries == {"value": "latency"}
    assert round(slo.bad_share, 6) == 0.05


REFUSED = [
    ("budgetingMethod: Occurrences", "budgetingMethod: Timeslices", 16, "Occurrences"),
    ("target: 0.99", "target: 1", 17, "less than 1"),
    ("target: 0.99", "target: 99", 17, "less than 1"),
    ("target: 0.99", "target: 0.99, timeSliceTarget: 0.9", 17, "timeSliceTarget is not supported"),
    ("target: 0.99", "target: 0.99, compositeWeight: 2", 17, "compositeWeight is not supported"),
    ("target: 0.99", "target: 0.99, targetPercent: 99", 17, "either `target` or `targetPercent`"),
    ("target: 0.99", "target: 0.99, op: lte, value: 1", 5, "and only then"),
    ("[{displayName: Fine, target: 0.99}]", "[{target: 0.9}, {target: 0.8}]", 17, "at most 1"),
    ("isRolling: true", "isRolling: false", 15, "only rolling windows"),
    ("isRolling: true", "calendar: {startTime: x, timeZone: y}", 15, "calendar is not supported"),
    ("duration: 28d", "duration: 1M", 15, "1M is not supported"),
    ("duration: 28d", "duration: soon", 15, "duration"),
    ("counter: true", "counter: true\n        rawType: success", 11, "rawType is not supported"),
    ("type: Prometheus, spec: {query: sum(http", "type: Datadog, spec: {query: sum(http", 14, "Datadog"),
    ("query: sum(http_requests_total)", "promql: x", 14, "promql"),
    ("query: sum(http_requests_total)", "query: 'x[{{.window}}]'", 14, "template"),
    ("        good:", "        bad: {metricSource: {spec: {query: a}}}\n        good:", 10, "either `good` or `bad`"),
    (
        "      ratioMetric:",
        "      thresholdMetric: {metricSource: {spec: {query: a}}}\n      ratioMetric:",
        9,
        "either",
    ),
    ("apiVersion: openslo/v1", "apiVersion: openslo/v1alpha", 1, "openslo/v1"),
    ("service: shop", "servise: shop", 5, "servise"),
]


@pytest.mark.lie
@pytest.mark.parametrize(("old", "new", "line", "said"), REFUSED, ids=[new.strip()[:30] for _, new, _, _ in REFUSED])
def test_what_is_not_supported_is_refused_by_name_at_its_line(old, new, line, said, written):
    assert old in SLO
    with pytest.raises(ExperimentError) as refused:
        written(SLO.replace(old, new, 1))
    assert f"slos/checkout.yaml:{line}:" in str(refused.value)
    assert said in str(refused.value)


@pytest.mark.lie
@pytest.mark.parametrize(
    ("slo", "place", "said"),
    [
        (APART, "checkout.yaml:6:", "0 documents of the kind SLI"),
        (SLO.replace("kind: SLO", "kind: Deployment"), "mine.yaml:6:", "0 documents of the kind SLO"),
        (THRESHOLD + SLI.replace("type: Prometheus", "type: Datadog"), "checkout.yaml:22:", "only Prometheus is"),
        (THRESHOLD.replace("op: lte, ", "") + SLI, "checkout.yaml:5:", "`op` and `value`"),
        (SLI, "mine.yaml:6:", "0 documents of the kind SLO"),
        (f"{SLO}---\n{SLO}", "mine.yaml:6:", "2 documents of the kind SLO"),
        ("- a\n", "mine.yaml:6:", "0 documents of the kind SLO"),
        ("a: [\n", "checkout.yaml:", ""),
    ],
)
def test_a_file_that_has_no_whole_slo_is_refused_at_its_line(slo, place, said, written):
    with pytest.raises(ExperimentError) as refused:
        written(slo)
    assert place in str(refused.value)
    assert said in str(refused.value)


@pytest.mark.lie
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("slos/checkout.yaml", "slos/nowhere.yaml", "there is no such file"),
        ("budget: 5%", "budget: 500%", "over 100%"),
        (", budget: 5%", "", "longer than a run of 100s"),
        ("probe: checkout", "probe: chekout", "did you mean checkout?"),
    ],
)
def test_what_could_never_be_judged_is_refused_before_the_run(old, new, said, written):
    with pytest.raises(ExperimentError, match=said):
        written(experiment=EXPERIMENT.replace(old, new))


def told(good, total):
    return {"good": good, "total": total}


def counted(answer, times=1, slo=None):
    given = SloParams.model_validate({"url": "http://client-1:9090", "slo": slo or content()})
    transport = httpx2.MockTransport(answer)
    return [(each["good"], each["total"]) for each in looked(SloProbe("it", given, HOSTS, transport=transport), times)]


def content(metric=None, **objective):
    from hashidrill.core.experiment.documents import Document

    data = Document("slo.yaml", SLO).data
    indicator = data["spec"]["indicator"] | ({"spec": metric} if metric else {})
    objectives = [{"target": 0.99, **objective}]
    return data | {"spec": data["spec"] | {"indicator": indicator, "objectives": objectives}}


def source(query="q"):
    return {"metricSource": {"spec": {"query": query}}}


def test_the_events_since_the_last_look():
    server = Server(told(90, 100), told(95, 110), told(95, 110))
    first, *later = counted(server, 3)
    assert isinstance(first[0], str)
    assert later == [(5, 10), (0, 0)]
    assert 'label_replace((sum(http_requests_total)\n), "hashidrill", "total", "", "")' in server.query
    gauges = content({"ratioMetric": {"bad": source(), "total": source()}})
    assert counted(Server({"bad": 1, "total": 100}), slo=gauges) == [(99, 100)]


@pytest.mark.parametrize(
    ("op", "values"), [("lte", [1, 1, 0]), ("lt", [1, 0, 0]), ("gte", [0, 1, 1]), ("gt", [0, 0, 1])]
)
def test_a_look_is_an_event_of_a_threshold(op, values):
    slo = content({"thresholdMetric": source()}, op=op, value=0.3)
    seen = counted(Server(*({"value": value} for value in (0.2, 0.3, 0.4))), 3, slo=slo)
    assert seen == [(value, 1) for value in values]


@pytest.mark.lie
@pytest.mark.parametrize(
    ("answers", "known"),
    [
        ([told(90, 100), told(5, 6), told(6, 7)], [False, False, True]),  # a reset
        ([told(90, 100), told(91, 50), told(92, 51)], [False, False, True]),  # a reset of one of the two
        ([told(90, 100), httpx2.Response(503), told(99, 110), told(99, 111)], [False, False, False, True]),
        ([told(90, 100), {"good": 91}, told(92, 102), told(93, 103)], [False, False, False, True]),  # no data
        ([{}, {}], [False, False]),
        ([told("NaN", 1), told("1", "+Inf"), told(-1, 2)], [False, False, False]),
        ([reply([vector(hashidrill=what) for what in ("asked", "good", "total", "good")])], [False]),  # two series
        ([refuse, hang], [False, False]),
    ],
)
def test_what_was_not_surely_counted_is_unknown(answers, known):
    seen = counted(Server(*answers), len(answers))
    assert [not isinstance(good, str) and not isinstance(total, str) for good, total in seen] == known


@pytest.mark.lie
@pytest.mark.parametrize("more", [{"warnings": ["one store did not answer"]}, {"isPartial": True}, {"frozen": True}])
def test_a_part_of_the_data_or_an_old_answer_is_unknown(more):
    slo = content({"ratioMetric": {"good": source(), "total": source()}})
    seen = counted(Server(told(1, 2), **more), 2, slo=slo)
    assert isinstance(seen[1][0], str)
