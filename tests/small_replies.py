"""Results of dialogue runs with replies, small enough to check by hand: four configurations, two seeds.

Every conversation has ten words of equal loss, so that each perplexity is the number given here. Six conversations are
tested by each seed, three of them by both.
"""

import math

USERS = ("ada", "bo")
CONVERSATIONS = {0: (0, 1, 2, 3, 4, 5), 1: (3, 4, 5, 6, 7, 8)}  # by seed
WORDS = 10
TITLES = {"fedavg": "FedNLG", "seq2seq-fl": "SEQ2SEQ + FL", "persona": "Persona", "seq2seq": "SEQ2SEQ"}
METHODS = {"fedavg": "fednlg", "seq2seq-fl": "fednlg", "persona": "central_dialogue", "seq2seq": "central_dialogue"}
PERPLEXITY = {"fedavg": (40, 40), "seq2seq-fl": (50, 50), "persona": (30, 36), "seq2seq": (45, 45)}  # by seed
ANOTHER = {"fedavg": 44, "persona": 33}
UNTOUCHED = 64
GAIN = 0.8  # factor on a perplexity if the speaker is known
RIGHT = {"fedavg": (1, 1), "seq2seq-fl": (1, 0), "persona": (1, 1), "seq2seq": (1, 0)}  # of ada and of bo
NAMES = ("bleu_1", "bleu_2", "bleu_4", "bleu_4_smoothed", "sentence_bleu", "distinct_1", "distinct_2")


def losses(key, seed):
    names = CONVERSATIONS[seed]

    def of(perplexity):
        return [round(WORDS * math.log(perplexity), 4)] * len(names)

    another = ANOTHER.get(key)
    words, own = [WORDS] * len(names), of(PERPLEXITY[key][seed])
    parts = {"own": own, "another": another and of(another), "untouched": of(UNTOUCHED), "classifier": of(GAIN)}
    return {"conversation": list(names), "words": words, **parts}


def scores(seed, right, value):
    found = {name: [value, value - 0.01, value + 0.01] for name in (*NAMES, "most_frequent")}
    return {
        **found,
        "length": [4.0, 3.0, 5.0],
        "speaker": [sum(right) / 2, None, None],
        "right": list(right) * len(CONVERSATIONS[seed]),
        "sacrebleu": value,
        "signature": "nrefs:1|version:2",
        "consistency": [0.5, 0.25, 3],
    }


def replies(key, seed):
    another = ANOTHER.get(key)
    count = len(CONVERSATIONS[seed])
    return {
        "decode": "beam",
        "beam": 7,
        "prompts": 2 * count,
        "asked": {
            "users": list(USERS),
            "user": [0, 1] * count,
            "conversation": [one for one in CONVERSATIONS[seed] for _ in USERS],
            "speakers": len(USERS),
        },
        "losses": losses(key, seed),
        "reranker": None,
        "scores": {
            "own": scores(seed, RIGHT[key], 0.10 + 0.02 * seed),
            "another": another and scores(seed, (0, 0), 0.05),
            "sampled": {**scores(seed, RIGHT[key], 0.07), "consistency": None},
            "sampled_another": another and {**scores(seed, (1, 0), 0.07), "consistency": None},
            "retrieved": scores(seed, (0, 1), 0.2),
            "real": scores(seed, (1, 1), 1.0),
        },
        "samples": {
            "prompts": ["How are you?", "Where is it?"],
            "users": list(USERS),
            "replies": [[f"{key} {user} {place}" for user in USERS] for place in ("fine", "there")],
        },
    }


def evaluation(value):
    columns = {"loss": math.log(value), "user_mean": value, "user_worst_tenth": value, "user_values": [value] * 2}
    tokens = {"user_loss": [10 * math.log(value)] * 2, "user_tokens": [10, 10]}
    return {"metric": "perplexity", "value": value, "users": 2, "examples": 4, **columns, **tokens}


def run_of(key, seed, **more):
    found = {
        "method": METHODS[key], "seed": seed, "fold": None, "pooled": False, "settings": {}, "identity": {},
        "run": {"rounds": 1, "cohort": "all", "withheld": 0.0, "evaluate_users": 9, "evaluate_examples": None,
                "sampler": "shuffled"},
        "rounds": [{"clients": 2, "seconds": 0.5, "down_bytes": {}, "up_bytes": {}}],
        "curve": [{"round": 1, "epoch": 1.0, "value": 40.0}],
        "eval": evaluation(PERPLEXITY[key][seed]), "test": evaluation(PERPLEXITY[key][seed]),
        "adapted": {}, "newcomers": {}, "newcomers_untouched": None, "newcomers_in_context": {}, "personal": None,
        "privacy": None, "replies": replies(key, seed),
    }  # fmt: skip
    return {**found, **more}


DATA = {"name": "talk", "users": 2, "newcomers": 2, "check": {"users": 2, "examples": 24}}
CONTROLS = {"untouched": evaluation(UNTOUCHED)}
VERSIONS = {"python": "3", "homespun": "0"}
