"""The report's sections: what each says in a line, why, and its tables. Figures join them by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from homespun.report import continuation_tables, few_shot, groups, run_metadata, score_tables, traffic
from homespun.report.differences import difference_table, own_samples_table, personal_table, unadapted_table
from homespun.report.table_model import Table, byte_text, count, shorten


@dataclass(frozen=True)
class Section:
    key: str
    short: str  # for a table of contents
    heading: str  # says what is seen
    text: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    about_figures: str = ""


def report_title(results: Mapping[str, Any]) -> str:
    return shorten(results.get("name") or "homespun", 120)


def subtitle(results: Mapping[str, Any]) -> str:
    data = results.get("data") or {}
    seeds, folds = score_tables.seeds_of(results), score_tables.folds_of(results)
    parts = [
        f"corpus {shorten(data.get('name', '?'))}",
        "" if folds else f"{count(data.get('users'))} participants",
        f"{count(data['newcomers'])} newcomers" if data.get("newcomers") else "",
        f"{folds} folds" if folds else "",
        f"{len(seeds)} seeds" if len(seeds) > 1 else "1 seed",
        f"homespun {shorten((results.get('versions') or {}).get('homespun', '?'))}",
    ]
    return " · ".join(part for part in parts if part)


def sections(results: Mapping[str, Any]) -> list[Section]:
    """In reading order; a section without anything to say is left out."""
    found = [
        _result(results),
        _voices(results),
        _curves(results),
        _users(results),
        _samples(results),
        _groups(results),
        _maps(results),
        _homes(results),
        _data(results),
        _runs(results),
    ]
    return [section for section in found if section is not None]


def _known(results: Mapping[str, Any], part: str, column: str = "value") -> list[tuple[str, float]]:
    """Configurations' titles and means, where there is one; best first. Two may have the same title."""
    means = {key: score_tables.middle(found, column) for key, found in score_tables.summaries(results, part).items()}
    known = [(score_tables.title_of(results, key), value) for key, value in means.items() if value is not None]
    best_first = score_tables.metric_of(results).best_first
    return sorted(known, key=lambda item: best_first(item[1]))


def _result(results: Mapping[str, Any]) -> Section:
    metric, known = score_tables.metric_of(results), _known(results, "test")
    if not known:
        heading = f"No {metric.title} on the test set could be computed"
    else:
        title, value = known[0]
        best = f"{title} does best: " if len(known) > 1 else f"{title}: "
        reached = f"{metric.said(value)} {metric.title}" if metric.percent else f"{metric.title} {metric.said(value)}"
        heading = f"{best}{reached} on the test set{_beaten(results, value)}"
    sampled = run_metadata.sampled_users(results)
    text = (f"Evaluated on {sampled}.",) if sampled else ()
    every = difference_table(results), personal_table(results), unadapted_table(results), own_samples_table(results)
    compared = [made for made in every if made is not None]
    tables = (score_tables.main_table(results), *compared)
    return Section("result", "Result", heading, text=text, tables=tables)


def _voices(results: Mapping[str, Any]) -> Section | None:
    tables = continuation_tables.voice_tables(results)
    if not tables:
        return None
    learned = score_tables.title_of(results, results["showcase"]["configuration"])
    text = (
        f"What {learned} learned of each person and setting stands before the opening; the language model, which is "
        f"the same for everybody, goes on. The draws have the same seed. {continuation_tables.NOBODY_SAID_THIS}"
    )
    heading = "The same opening, continued by one person in every setting and by several in one"
    return Section("voices", "Voices", heading, text=(text,), tables=tuple(tables))


def _beaten(results: Mapping[str, Any], best: float) -> str:
    """Says so where a control, which learned from nobody, does better than every configuration."""
    metric = score_tables.metric_of(results)
    found = {key: score_tables.middle(one) for key, one in score_tables.control_summaries(results).items()}
    rank = {key: metric.best_first(value) for key, value in found.items() if value is not None}
    better = [key for key in rank if rank[key] < metric.best_first(best)]
    if not better:
        return ""
    key = min(better, key=lambda name: rank[name])
    side, name = "more" if metric.lower_is_better else "less", score_tables.control_name(key)
    return f", {side} than the control “{name[0].lower()}{name[1:]}” ({metric.said(found[key])})"


def _curves(results: Mapping[str, Any]) -> Section | None:
    runs = [run for found in results.get("configurations", {}).values() for run in found["runs"]]
    known = _known(results, "eval")
    if not known or not any(run.get("curve") for run in runs):
        return None
    metric = score_tables.metric_of(results)
    (bottom, low), *_, (top, high) = sorted([known[0], known[-1]], key=lambda item: item[1])
    span = (
        f"between {metric.said(low)} ({bottom}) and {metric.said(high)} ({top})"
        if len(known) > 1
        else f"at {metric.said(high)}"
    )
    several = " Thick: the mean over all runs; thin: each run." if len(runs) > len(known) else ""
    text = (
        f"While it learns, on examples that were set aside from training.{several} One epoch is every "
        "training example used once."
    )
    return Section(
        "curves", "Learning", f"{metric.sentence_title} on the evaluation set ends {span}", about_figures=text
    )


def _users(results: Mapping[str, Any]) -> Section | None:
    known = _known(results, "test", "user_worst_tenth")
    if not known:
        return None
    (title, value), metric = known[0], score_tables.user_metric_of(results)
    sampled = run_metadata.sampled_users(results)
    text = (f"Shown: {sampled}.",) if sampled else ()
    boxes = (
        "A mean hides whom a model fails. Each box holds the middle half of the users, its line is the "
        "median, and the whiskers reach from the 10th to the 90th of every 100 users. ◆ is the mean over "
        "users; ▲ is the worst tenth: the mean over the tenth of users who fare worst, those beyond the "
        f"{'right' if metric.lower_is_better else 'left'} whisker."
    )
    reaches = (
        f"has a perplexity of {metric.said(value)}"
        if metric.lower_is_better
        else f"is right {metric.said(value)} of the time"
    )
    heading = f"For the worst-served tenth of users, {title} {reaches}"
    found = score_tables.users_table(results)
    return Section("users", "Users", heading, text=text, tables=(found,), about_figures=boxes)


def _samples(results: Mapping[str, Any]) -> Section | None:
    """Newcomers, and for text also participants, by number of own samples."""
    tables = few_shot.sample_tables(results)
    if not tables:
        return None
    several = few_shot.NEWCOMERS not in few_shot.people_of(results)
    heading, short = (
        (_samples_heading(results), "Own samples") if several else (_newcomers_heading(results), "Newcomers")
    )
    return Section("newcomers", short, heading, tables=tuple(tables))


def _samples_heading(results: Mapping[str, Any]) -> str:
    """The best of each kind of people with all samples of their own."""
    metric, reached = score_tables.metric_of(results), []
    for people in few_shot.people_of(results):
        shown = few_shot.lines(results, people)
        most = few_shot.counts(shown)[-1:]
        known = [
            (value, line.title)
            for line in shown
            for at in most
            if (value := score_tables.middle(line.at(at))) is not None
        ]
        if known:
            value, title = min(known, key=lambda item: metric.best_first(item[0]))
            reached.append(f"{people.title.lower()} {metric.said(value)} ({title})")
    return f"With all samples of their own, at best: {', '.join(reached)}" if reached else "What own samples bring"


def _newcomers_heading(results: Mapping[str, Any]) -> str:
    metric, shown = score_tables.metric_of(results), few_shot.lines(results, few_shot.NEWCOMERS)
    known = [
        (int(number), value, line.title)
        for line in shown
        for number, one in line.found.items()
        if number.isdigit() and (value := score_tables.middle(one)) is not None
    ]
    if not known:
        return "People who never took part"
    most = max(number for number, _, _ in known)
    value, title = min(
        ((value, title) for number, value, title in known if number == most),
        key=lambda item: metric.best_first(item[0]),
    )
    examples = f"{most} examples of their own" if most > 1 else f"{most or 'no'} example of their own"
    whose = f" ({title})" if len(shown) > 1 else ""
    return f"Newcomers reach {metric.said(value)} with {examples}{whose}"


def _groups(results: Mapping[str, Any]) -> Section | None:
    found = [groups.share_table(results), groups.assignment_table(results)]
    tables = tuple(made for made in found if made is not None)
    if not tables:
        return None
    about = (
        "Each row is a sub-population, each column a place: a head or a cluster. Where those who belong together were "
        "put together, every column has one dark cell."
    )
    count_of = len(groups.group_sizes(results))
    return Section(
        "groups",
        "Sub-populations",
        f"Who was put where: {count_of} sub-populations",
        tables=tables,
        about_figures=about,
    )


def _maps(results: Mapping[str, Any]) -> Section | None:
    similar = score_tables.similarity_table(results)
    drawn = any(found["runs"][0].get("maps") for found in results.get("configurations", {}).values())
    if similar is None and not drawn:
        return None
    about = (
        "Each point is one person: the parameters that are their own, laid out in the plane by PCA (which "
        "keeps large distances) and by t-SNE (which keeps neighbours together; its axes and distances mean "
        "nothing). Of parameters kept at home only a simulation, which holds every home on one machine, can "
        "draw a map."
    )
    means = [
        (pair, middle) for pair, (middle, _, _) in score_tables.similarity_means(results).items() if middle is not None
    ]
    heading = "Where each person's own parameters lie"
    if means:
        (left, right), value = max(means, key=lambda item: item[1])
        pair = f"{score_tables.title_of(results, left)} and {score_tables.title_of(results, right)}"
        heading = f"Distances between users correlate at {value:.3f} between {pair}"
    return Section("maps", "Maps", heading, tables=(similar,) if similar else (), about_figures=about if drawn else "")


def _homes(results: Mapping[str, Any]) -> Section:
    lines = []
    for key, rows in traffic.federated_traffic(results).items():
        down, up = sum(row.down_per_client or 0 for row in rows), sum(row.up_per_client or 0 for row in rows)
        kept = sum(row.up_per_client or 0 for row in rows if row.role == "private")
        lines.append(
            f"{score_tables.title_of(results, key)}: in a round a client receives {byte_text(down)} and sends "
            f"{byte_text(up)}; of its private parameters, {byte_text(kept)}.{_membership(results, key, rows)}"
        )
    central = [
        score_tables.title_of(results, key)
        for key, configuration in results.get("configurations", {}).items()
        if traffic.pooled(configuration)
    ]
    if central:
        lines.append(f"{', '.join(central)}: central training, where the server has everybody's examples.")
    found = [traffic.traffic_table(results), traffic.privacy_table(results), traffic.released_table(results)]
    tables = tuple(made for made in found if made is not None)
    return Section("homes", "What left the homes", "What left the homes", text=(traffic.PROMISE, *lines), tables=tables)


def _membership(results: Mapping[str, Any], key: str, rows: Sequence[traffic.Traffic]) -> str:
    """Whether the server could see which keyed rows, a head or a context, are somebody's."""
    if not any(row.role == "keyed" and row.up_per_client for row in rows):
        return ""
    private = results["configurations"][key]["runs"][0].get("privacy")
    if private is None:
        return " Which keyed rows it uses is plain to see in its update."
    if private["insecure"]:
        return " Which keyed rows it uses is under noise that its seed tells, which hides nothing."
    where = (
        "before it leaves" if private["noise"] == "local" else "in the sum; the server that adds it sees single updates"
    )
    return f" Which keyed rows it uses is hidden by noise on all of them, {where}."


def _data(results: Mapping[str, Any]) -> Section:
    data, folds = results.get("data") or {}, score_tables.folds_of(results)
    users = f"{count(data.get('users'))} people took part"
    rest = f", {count(data['newcomers'])} did not" if data.get("newcomers") else ""
    if folds:
        users, rest = f"{count(data.get('newcomers'))} people were withheld in one of {folds} folds each", ""
    heading = f"The data: in {shorten(data.get('name', 'this corpus'))}, {users}{rest}"
    return Section("data", "Data", heading, tables=(run_metadata.data_table(results),))


def _runs(results: Mapping[str, Any]) -> Section:
    tables = (
        run_metadata.runs_table(results),
        run_metadata.versions_table(results),
        *run_metadata.settings_tables(results),
    )
    return Section("runs", "How it was run", "How it was run", tables=tables)
