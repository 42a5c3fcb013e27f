"""What `import homespun` gives."""

from homespun.personalization.generation import generate as generate
from homespun.personalization.new_user import personalize as personalize
from homespun.runs.evaluate import evaluate as evaluate
from homespun.runs.training import load as load
from homespun.runs.training import reopen as reopen
from homespun.runs.training import train as train
