"""The report's sections: heading, text and tables of each. Figures belong to a section by its key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from homespun.report import (
    continuation_tables,
    few_shot,
    groups,
    next_word_systems,
    next_word_tables,
    reply_tables,
    run_metadata,
    score_tables,
    traffic,
)
from homespun.report.differences import difference_table, own_samples_table, personal_table, unadapted_table
from homespun.report.table_model import Table, byte_text, count_text, shorten


@dataclass(frozen=True)
class Section:
    key: str
    short: str  # for a table of contents
    heading: str  # states the finding
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
        "" if folds else f"{count_text(data.get('users'))} participants",
        f"{count_text(data['newcomers'])} newcomers" if data.get("newcomers") else "",
        f"{folds} folds" if folds else "",
        f"{len(seeds)} seeds" if len(seeds) > 1 else "1 seed",
        f"homespun {shorten((results.get('versions') or {}).get('homespun', '?'))}",
    ]
    return " · ".join(part for part in parts if part)


def sections(results: Mapping[str, Any]) -> list[Section]:
    """All sections that have content, in reading order."""
    found = [
        _next_words(results),
        _result(results),
        _replies(results),
        _continuations(results),
        _curves(results),
        _users(results),
        _few_shot(results),
        _groups(results),
        _projections(results),
        _communication(results),
        _data(results),
        _runs(results),
    ]
    return [section for section in found if section is not None]


def _known(results: Mapping[str, Any], part: str, column: str = "value") -> list[tuple[str, float]]:
    """Titles and means of the configurations that have a mean, best first. Two titles may be equal."""
    means = {
        key: score_tables.summary_mean(found, column) for key, found in score_tables.summaries(results, part).items()
    }
    known = [(score_tables.title_of(results, key), value) for key, value in means.items() if value is not None]
    sort_key = score_tables.metric_of(results).sort_key
    return sorted(known, key=lambda item: sort_key(item[1]))


def _result(results: Mapping[str, Any]) -> Section:
    metric, known = score_tables.metric_of(results), _known(results, "test")
    if not known:
        heading = f"No {metric.title} on the test set could be computed"
    else:
        title, value = known[0]
        best = f"{title} does best: " if len(known) > 1 else f"{title}: "
        reached = (
            f"{metric.text_with_unit(value)} {metric.title}"
            if metric.percent
            else f"{metric.title} {metric.text_with_unit(value)}"
        )
        heading = f"{best}{reached} on the test set{_beaten(results, value)}"
    sampled, participants = run_metadata.sampled_users(results), next_word_tables.about_participants(results)
    if participants:
        heading = f"Participants of the training: {heading}"
    text = tuple(line for line in (f"Evaluated on {sampled}." if sampled else "", participants) if line)
    every = difference_table(results), personal_table(results), unadapted_table(results), own_samples_table(results)
    compared = [made for made in every if made is not None]
    tables = (score_tables.main_table(results), *compared)
    return Section("result", "Result", heading, text=text, tables=tables)


def _next_words(results: Mapping[str, Any]) -> Section | None:
    shown = next_word_systems.systems(results)
    if not shown:
        return None
    tables = tuple(next_word_tables.next_word_tables(results, shown))
    return Section("next-words", "Next words", next_word_tables.heading(shown), tables=tables)


def _replies(results: Mapping[str, Any]) -> Section | None:
    answered = reply_tables.prompt_table(results)
    tables = (*reply_tables.reply_tables(results), *([answered] if answered else []))
    if not tables:
        return None
    heading = "Replies to test prompts, and whether they sound like the speaker"
    return Section("replies", "Replies", heading, tables=tables)


def _continuations(results: Mapping[str, Any]) -> Section | None:
    tables = continuation_tables.tables_by_prompt(results)
    if not tables:
        return None
    learned = score_tables.title_of(results, results["showcase"]["configuration"])
    text = (
        f"What {learned} learned about the user and the context is placed before the prompt; the language model, which "
        f"is the same for all users, continues it. All continuations use the same seed. "
        f"{continuation_tables.GENERATED_NOTICE}"
    )
    heading = "The same prompt, continued by one user in every context and by several users in one"
    return Section("continuations", "Generated text", heading, text=(text,), tables=tuple(tables))


def _beaten(results: Mapping[str, Any], best: float) -> str:
    """The control that beats every configuration, if there is one."""
    metric = score_tables.metric_of(results)
    found = {key: score_tables.summary_mean(one) for key, one in score_tables.control_summaries(results).items()}
    rank = {key: metric.sort_key(value) for key, value in found.items() if value is not None}
    better = [key for key in rank if rank[key] < metric.sort_key(best)]
    if not better:
        return ""
    key = min(better, key=lambda name: rank[name])
    name = score_tables.control_name(key)
    return f", worse than the control “{name[0].lower()}{name[1:]}” ({metric.text_with_unit(found[key])})"


def _curves(results: Mapping[str, Any]) -> Section | None:
    runs = [run for found in results.get("configurations", {}).values() for run in found["runs"]]
    known = _known(results, "eval")
    if not known or not any(run.get("curve") for run in runs):
        return None
    metric = score_tables.metric_of(results)
    (bottom, low), *_, (top, high) = sorted([known[0], known[-1]], key=lambda item: item[1])
    span = (
        f"between {metric.text_with_unit(low)} ({bottom}) and {metric.text_with_unit(high)} ({top})"
        if len(known) > 1
        else f"at {metric.text_with_unit(high)}"
    )
    several = " Thick lines are the mean over all runs, thin lines are single runs." if len(runs) > len(known) else ""
    text = (
        f"Measured during training on examples that are not trained on.{several} One epoch uses every training "
        "example once."
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
        "A mean hides the users whom a model fails. Each box holds the middle half of the users, its line is the "
        "median, and the whiskers extend from the 10th to the 90th percentile. ◆ is the mean over users; ▲ is the "
        "worst tenth: the mean over the tenth of users with the worst scores, those beyond the "
        f"{'right' if metric.lower_is_better else 'left'} whisker."
    )
    reaches = (
        f"has a perplexity of {metric.text_with_unit(value)}"
        if metric.lower_is_better
        else f"is right {metric.text_with_unit(value)} of the time"
    )
    heading = f"For the worst-served tenth of users, {title} {reaches}"
    found = score_tables.user_quantile_table(results)
    return Section("users", "Users", heading, text=text, tables=(found,), about_figures=boxes)


def _few_shot(results: Mapping[str, Any]) -> Section | None:
    """Scores of newcomers, and for text also of participants, by number of own samples."""
    tables = few_shot.few_shot_tables(results)
    if not tables:
        return None
    if next_word_systems.configurations(results):
        samples, heading = next_word_tables.samples_table(results), "Next words of new users by number of own samples"
        return Section("newcomers", "Own samples", heading, tables=(samples,) if samples else ())
    several = few_shot.NEWCOMERS not in few_shot.evaluated_users(results)
    heading, short = (
        (_samples_heading(results), "Own samples") if several else (_newcomers_heading(results), "Newcomers")
    )
    return Section("newcomers", short, heading, tables=tuple(tables))


def _samples_heading(results: Mapping[str, Any]) -> str:
    """The best score of known and of withheld users with all of their own samples."""
    metric, reached = score_tables.metric_of(results), []
    for users in few_shot.evaluated_users(results):
        shown = few_shot.score_curves(results, users)
        most = few_shot.sample_counts(shown)[-1:]
        known = [
            (value, curve.title)
            for curve in shown
            for at in most
            if (value := score_tables.summary_mean(curve.at(at))) is not None
        ]
        if known:
            value, title = min(known, key=lambda item: metric.sort_key(item[0]))
            reached.append(f"{users.title.lower()} {metric.text_with_unit(value)} ({title})")
    return f"Best result with all own samples: {', '.join(reached)}" if reached else "Results by number of own samples"


def _newcomers_heading(results: Mapping[str, Any]) -> str:
    metric, shown = score_tables.metric_of(results), few_shot.score_curves(results, few_shot.NEWCOMERS)
    known = [
        (int(number), value, curve.title)
        for curve in shown
        for number, one in curve.found.items()
        if number.isdigit() and (value := score_tables.summary_mean(one)) is not None
    ]
    if not known:
        return "Newcomers, who never took part"
    most = max(number for number, _, _ in known)
    value, title = min(
        ((value, title) for number, value, title in known if number == most),
        key=lambda item: metric.sort_key(item[0]),
    )
    examples = f"{most} examples of their own" if most > 1 else f"{most or 'no'} example of their own"
    whose = f" ({title})" if len(shown) > 1 else ""
    return f"Newcomers reach {metric.text_with_unit(value)} with {examples}{whose}"


def _groups(results: Mapping[str, Any]) -> Section | None:
    found = [groups.share_table(results), groups.assignment_table(results)]
    tables = tuple(made for made in found if made is not None)
    if not tables:
        return None
    about = (
        "Each row is a sub-population, each column a head or a cluster. If the users of a sub-population were assigned "
        "together, and to no other, every column has one dark cell."
    )
    count_of = len(groups.group_sizes(results))
    return Section(
        "groups",
        "Sub-populations",
        f"Scores and assignments of {count_of} sub-populations",
        tables=tables,
        about_figures=about,
    )


def _projections(results: Mapping[str, Any]) -> Section | None:
    similar = score_tables.similarity_table(results)
    drawn = any(found["runs"][0].get("maps") for found in results.get("configurations", {}).values())
    if similar is None and not drawn:
        return None
    about = (
        "Each point is one user: the user's own parameters, projected to two dimensions by PCA (which preserves large "
        "distances) and by t-SNE (which keeps neighbours together; its axes and distances have no meaning). Only a "
        "simulation, which holds all clients on one machine, can plot parameters that are never uploaded."
    )
    means = [
        (pair, average)
        for pair, (average, _, _) in score_tables.similarity_means(results).items()
        if average is not None
    ]
    heading = "Projections of users' own parameters"
    if means:
        (left, right), value = max(means, key=lambda item: item[1])
        pair = f"{score_tables.title_of(results, left)} and {score_tables.title_of(results, right)}"
        heading = f"Distances between users correlate at {value:.3f} between {pair}"
    return Section(
        "projections",
        "Projections",
        heading,
        tables=(similar,) if similar else (),
        about_figures=about if drawn else "",
    )


def _communication(results: Mapping[str, Any]) -> Section:
    lines = []
    for key, rows in traffic.federated_traffic(results).items():
        down, up = sum(row.down_per_client or 0 for row in rows), sum(row.up_per_client or 0 for row in rows)
        private = sum(row.up_per_client or 0 for row in rows if row.role == "private")
        lines.append(
            f"{score_tables.title_of(results, key)}: in each round a client receives {byte_text(down)} and uploads "
            f"{byte_text(up)}, of which {byte_text(private)} are private parameters.{_membership(results, key, rows)}"
        )
    central = [
        score_tables.title_of(results, key)
        for key, configuration in results.get("configurations", {}).items()
        if traffic.is_pooled(configuration)
    ]
    if central:
        lines.append(f"{', '.join(central)}: central training, where the server has all users' examples.")
    found = [traffic.traffic_table(results), traffic.privacy_table(results), traffic.released_table(results)]
    tables = tuple(made for made in found if made is not None)
    return Section(
        "communication",
        "Communication",
        "What clients received and uploaded",
        text=(traffic.PROMISE, *lines),
        tables=tables,
    )


def _membership(results: Mapping[str, Any], key: str, rows: Sequence[traffic.Traffic]) -> str:
    """Whether the server can see which keyed rows, such as heads or contexts, a client uses."""
    if not any(row.role == "keyed" and row.up_per_client for row in rows):
        return ""
    private = results["configurations"][key]["runs"][0].get("privacy")
    if private is None:
        return " Its update reveals which keyed rows it uses."
    if private["insecure"]:
        return " The noise on its keyed rows can be derived from the seed and hides nothing."
    where = (
        "added before upload"
        if private["noise"] == "local"
        else "added to the sum; the server that adds it sees single updates"
    )
    return f" Noise on all keyed rows hides which of them it uses, {where}."


def _data(results: Mapping[str, Any]) -> Section:
    data, folds = results.get("data") or {}, score_tables.folds_of(results)
    users = f"{count_text(data.get('users'))} participants"
    rest = f" and {count_text(data['newcomers'])} newcomers" if data.get("newcomers") else ""
    if folds:
        users, rest = f"{count_text(data.get('newcomers'))} users, each withheld in one of {folds} folds", ""
    heading = f"Data: {shorten(data.get('name', 'this corpus'))}, {users}{rest}"
    return Section("data", "Data", heading, tables=(run_metadata.data_table(results),))


def _runs(results: Mapping[str, Any]) -> Section:
    tables = (
        run_metadata.runs_table(results),
        run_metadata.versions_table(results),
        *run_metadata.settings_tables(results),
    )
    return Section("runs", "Runs", "Runs, versions and settings", tables=tables)
