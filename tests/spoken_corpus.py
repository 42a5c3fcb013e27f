"""A few users who write and speak, and a small, fast FedPerC run with them."""

from language_models import write_gpt2

from homespun.data.source import DataSettings
from homespun.runs.training import prepare, train_and_evaluate
from homespun.system.method_loading import method_module
from homespun.system.trust import named_by_user

PEOPLE = {
    "John F. Kennedy": "both",
    "Abraham Lincoln": "written",
    "George W. Bush": "both",
    "George H. W. Bush": "both",
}
SMALL = {"length": 12, "local_steps": 2, "batch": 3, "personalize_steps": 3, "lr": 0.05}
MINE = "We must go on together. The people ask what it is, and I think so. My fellow citizens, go on!\n"


def write_corpus(path):
    rows = [
        f"{user},{'written' if settings == 'written' or row % 2 else 'spoken'},The people must go on to year {row}."
        for user, settings in PEOPLE.items()
        for row in range(10)
    ]
    path.write_text("user,context,text\n" + "\n".join(rows) + "\n")
    return path


def train_small(folder, *, method="fedperc", base=None, rounds=2, corpus=None, **settings):
    """A finished run in `folder/run`, still open."""
    base = base or write_gpt2(folder / "base")
    data = DataSettings(source=str(corpus or write_corpus(folder / "people.csv")))
    with named_by_user():
        known = method_module(str(method)).Settings.model_fields
    small = {name: value for name, value in SMALL.items() if name in known}
    values = {"rounds": rounds, "workers": 0, "cohort": "all", "base_model": str(base), **small, **settings}
    run = prepare(str(method), data.load(), folder=folder / "run", settings=values, data=data)
    for _ in train_and_evaluate(run):
        pass
    return run
