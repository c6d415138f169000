"""`hashidrill gameday` on planted recordings."""

from typer.testing import CliRunner

from hashidrill.core.errors import HashidrillError
from hashidrill.faces.cli.app import app
from hashidrill.testing.recordings import RecordingBuilder

UNATTENDED = {"before": [{"confirm": "Nobody deploys", "unattended": True}]}


def recorded(folder, number, *, slow_until=22.0, proven=True, outcome="complete"):
    run = RecordingBuilder(folder / f"2026030{number}-000000-planted-0000")
    run.fault("disk.latency", "consul-1", at=10, until=20, proven=proven)
    run.load("kv-writes", latency=lambda t: 3.0 if 10 <= t < slow_until else 0.01).final_reads("kv-writes").healthy()
    run.expect("writes_recover", load="kv-writes", within="10s").end(outcome)
    return run.build().path


class Machine:
    """Stands for what makes recordings: each experiment leaves the planted one."""

    def __init__(self):
        self.planted, self.ran = {}, []

    def run(self, resolved, *, runs_dir, events):
        del events
        self.ran.append(resolved.name)
        how = dict(self.planted.get(resolved.name, {}))
        if (error := how.pop("error", None)) is not None:
            raise error
        stops = how.pop("stops", False)
        path = recorded(runs_dir, len(self.ran), **how)
        if stops:
            raise KeyboardInterrupt(path)
        return path


def called(*arguments, typed=None):
    done = CliRunner().invoke(app, ["gameday", *map(str, arguments)], input=typed)
    if isinstance(done.exception, HashidrillError):
        return done.exception.exit_code, done.stdout, str(done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


def the_day(tmp_path):
    [folder] = (tmp_path / ".hashidrill/days").iterdir()
    return folder
