"""`datacenter: {attach: ...}` in an experiment means what `--attach` means, and never a datacenter of ours."""

import pytest
import typer
from typer.testing import CliRunner

from attached_estates import TOKEN, FakeEstate, attach_file
from folded import unfolded
from hashidrill.core.errors import ExperimentError, InterlockError, MachineError, UsageError
from hashidrill.core.experiment.attached import attached_to
from hashidrill.core.experiment.library import read_experiment
from hashidrill.core.experiment.loader import load_experiment, resolve
from hashidrill.faces.cli import attached
from hashidrill.faces.cli.runs import register
from hashidrill.faces.cli.validate import _error_of
from hashidrill.lab.runs.launch import prepare
from hashidrill.staging.attach.target import read_target
from hashidrill.staging.runs.attach_limits import check_possible
from virtual_time import run

CONSUL = '  consul: {address: "http://10.73.0.11:8500", token_file: token}\n'
HERE = '{metadata: {name: staging}, datacenter: {consul: {address: "http://10.73.0.11:8500", token_file: token}}}'
STEP = '{fault: consul.leader.transfer, on: "consul:leader", for: 5s}'
EXPERIMENT = """\
apiVersion: hashidrill/v1
kind: Experiment
metadata: {{name: moved, title: Moved, why: because}}
{datacenter}load: {{kv-writes: {{kind: consul.kv.write, rate: 5/s}}}}
steady_state: {{require: ["raft.leader >= 0"]}}
method: [{step}]
expect: [{{no_acknowledged_write_lost: {{load: kv-writes}}}}]
"""


@pytest.fixture
def written(tmp_path):
    """The path of an experiment with this under `datacenter.attach`; beside it are `staging.yaml` and its token."""
    attach_file(tmp_path, CONSUL)

    def write(attach, *, name="moved.yaml", step=STEP):
        path = tmp_path / name
        datacenter = "" if attach is None else f"datacenter: {{attach: {attach}}}\n"
        path.write_text(EXPERIMENT.format(datacenter=datacenter, step=step))
        return path

    return write


@pytest.mark.parametrize("attach", ["staging.yaml", HERE])
def test_both_forms_name_the_datacenter_that_the_file_names(written, attach, tmp_path):
    inline = read_target(written(attach), {})
    file = read_target(tmp_path / "staging.yaml", {})
    assert (inline.name, inline.logins["consul"].address) == (file.name, file.logins["consul"].address)
    assert inline.logins["consul"].token.reveal() == TOKEN


@pytest.mark.parametrize("attach", ["staging.yaml", HERE])
def test_it_is_the_experiment_that_attach_makes_of_it(written, attach):
    target = read_target(written(attach), {})
    estate = run(FakeEstate().found(target))

    def over(path):
        document = read_experiment(path)
        check_possible(document, target, estate, path=path)
        return attached_to(document, estate.as_datacenter(), name=target.name, path=path).experiment

    plain = over(written(None, name="plain.yaml"))
    assert over(written(attach)) == plain
    assert plain.datacenter.attach is None


def test_an_experiment_may_be_about_any_product_that_is_attached(written):
    """Which products are there is seen there: validate takes it without a part for each of them."""
    step = STEP.replace("consul", "nomad")
    assert _error_of(written("staging.yaml", step=step)) is None
    assert "has no nomad" in unfolded(_error_of(written(None, step=step)))


def test_a_run_finds_it_and_the_option_of_the_command_wins(written, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(attached, "attached", lambda path, *said: asked.append((path, *said)) or path)
    inline, plain = str(written("staging.yaml")), str(written(None, name="plain.yaml"))
    there = attached.for_run([inline, plain], None, plan=False, breaks_quorum=False)
    assert there == [tmp_path / "moved.yaml", None]
    other = tmp_path / "other.yaml"
    assert attached.for_run([inline, plain], other, plan=True, breaks_quorum=True) == [other, other]
    assert asked == [(tmp_path / "moved.yaml",), (other, "breaks-quorum")]
    with pytest.raises(UsageError, match="--plan and --breaks-quorum are about an existing datacenter"):
        attached.for_run([inline, plain], None, plan=True, breaks_quorum=False)
    assert attached.for_run([inline], None, plan=True, breaks_quorum=False) == [tmp_path / "moved.yaml"]


class Place:
    """An existing datacenter whose interlocks refuse some experiments; `asked` and `begun` are names."""

    def __init__(self, *refused):
        self.refused, self.asked, self.begun = refused, [], []

    def over(self, path):
        return resolve(path)

    def allowed(self, resolved):
        self.asked.append(resolved.path.name)
        if resolved.path.name in self.refused:
            raise InterlockError("not armed: it is for moved.yaml, not for later.yaml")

    def run(self, resolved, **_):
        self.begun.append(resolved.path.name)
        raise MachineError("it begins")


@pytest.mark.lie
def test_an_experiment_that_is_refused_is_known_before_the_first_of_several_begins(written, monkeypatch, tmp_path):
    """Else the first puts its faults in force, and what it found is not said because the second is refused."""
    place = Place("later.yaml")
    monkeypatch.setattr(attached, "attached", lambda *_: place)
    both = [str(written("staging.yaml")), str(written("staging.yaml", name="later.yaml"))]
    app = typer.Typer()
    register(app)
    with pytest.raises(InterlockError, match="not armed") as refused:
        CliRunner().invoke(app, ["run", *both, "--runs", str(tmp_path / "runs")], catch_exceptions=False)
    assert refused.value.exit_code == 2
    assert (place.asked, place.begun) == (["moved.yaml", "later.yaml"], [])
    place.refused = ()
    with pytest.raises(MachineError, match="it begins"):
        CliRunner().invoke(app, ["run", *both, "--runs", str(tmp_path / "runs")], catch_exceptions=False)
    assert place.begun == ["moved.yaml"]


def test_nothing_starts_a_datacenter_of_ours_for_it(written):
    resolved = resolve(written("staging.yaml"))
    with pytest.raises(UsageError, match=r"needs an existing datacenter \(datacenter.attach\)"):
        prepare(resolved, lambda _: None, ensure_binary=lambda *_, **__: pytest.fail("a binary was looked for"))


def test_validate_checks_the_file_that_it_names(written, tmp_path):
    assert _error_of(written("staging.yaml")) is None
    assert _error_of(written(HERE)) is None
    assert "there is no such file" in unfolded(_error_of(written("stageing.yaml")))
    assert "cannot be attached: did you mean consul" in unfolded(_error_of(written(HERE.replace("consul", "consol"))))
    written(None, name="plain.yaml")
    assert "not an Attach file" in unfolded(_error_of(written("plain.yaml")))
    (tmp_path / "staging.yaml").write_text("apiVersion: hashidrill/v1\nkind: Attach\nmetadata: {name: x}\n")
    assert "datacenter" in _error_of(written("staging.yaml"))


def test_validate_knows_files_of_kind_attach(tmp_path):
    """Without the environment, without a token, and without a look at anybody."""
    path = attach_file(tmp_path, '  consul: {address: "https://nobody.example:8501", token_file: not-there}\n')
    assert _error_of(path) is None
    path = attach_file(tmp_path, CONSUL + "interlocks: {stop: {within: soon}}\n")
    assert "within" in _error_of(path)
    path = attach_file(tmp_path, "  consul: {adress: x}\n")
    assert "adress" in _error_of(path)


def test_what_is_neither_a_path_nor_a_mapping_is_refused(written):
    with pytest.raises(ExperimentError, match="attach"):
        load_experiment(written("[staging.yaml]"))
