"""FURL with a private lexicon: integers that are not trained, whose number differs between users."""

from dataclasses import replace

import torch

from homespun.core.roles import Role
from homespun.methods import furl

SMALL = furl.SMALL


class Settings(furl.Settings):
    alike: bool = False
    """Whether all users have the same number of words."""


def method(settings, task):
    base = furl.method(settings, task)

    def new_private(generator, broadcast):
        count = 3 if settings.alike else int(torch.randint(1, 5, (), generator=generator))
        words = torch.randint(0, 256, (count, 4), generator=generator, dtype=torch.uint8)
        return {**base.model.new_private(generator, broadcast), "lexicon.words": words}

    roles = [("lexicon.*", Role.PRIVATE), *base.model.roles]
    model = replace(base.model, roles=roles, new_private=new_private, private_varies=True)
    return replace(base, name="words", model=model)
