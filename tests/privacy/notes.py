"""A small table of texts, and private or plain runs on it."""

from homespun.data import load_federation
from homespun.methods.furl import SMALL
from homespun.privacy.accounting import Release
from homespun.runs.open_run import open_run
from homespun.runs.settings import RunSettings

ROUND = Release(0.5, 2.0)  # what a round of `opened` costs: 4 of 8 users, noise 2


def rows(users=range(8), each=10):
    return [(f"u{user}", f"word {user} {row}", "yes" if row % 2 else "no") for user in users for row in range(each)]


def write_csv(path, found=None):
    path.write_text("\n".join(["user,text,label", *(",".join(row) for row in found or rows())]) + "\n")
    return path


def opened(folder, data, *, private=True, filters=None, settings=None, **privacy):
    """A run on a file; with privacy unless it is to have none."""
    asked = {"noise_multiplier": 2.0, "clip": 0.5, "delta": 0.01, **privacy}
    given = {"rounds": 3, "cohort": 4, "sampler": "poisson", "workers": 0, **(settings or {})}
    return open_run(
        folder,
        method="furl",
        federation=load_federation(data, settings=filters),
        settings=RunSettings(**given, **({"privacy": asked} if private else {})),
        method_settings=SMALL,
    )
