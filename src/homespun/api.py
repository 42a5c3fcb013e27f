"""What `import homespun` gives: functions for users, and the parts of a method for authors."""

# For users
# For authors of methods
from homespun.core.messages import Broadcast as Broadcast
from homespun.core.messages import ServerState as ServerState
from homespun.core.messages import Update as Update
from homespun.core.method import Artefact as Artefact
from homespun.core.method import Assign as Assign
from homespun.core.method import LocalTraining as LocalTraining
from homespun.core.method import LocalView as LocalView
from homespun.core.method import Method as Method
from homespun.core.method import ModelSpec as ModelSpec
from homespun.core.method import Phase as Phase
from homespun.core.method import Task as Task
from homespun.core.method import Window as Window
from homespun.core.optimizers import Adam as Adam
from homespun.core.optimizers import AdamW as AdamW
from homespun.core.optimizers import Sgd as Sgd
from homespun.core.personalize import Generated as Generated
from homespun.core.personalize import GradientSteps as GradientSteps
from homespun.core.personalize import Home as Home
from homespun.core.personalize import Personalization as Personalization
from homespun.core.roles import Role as Role
from homespun.core.scoring import Scoring as Scoring
from homespun.core.server import FedAdam as FedAdam
from homespun.core.server import FedAvg as FedAvg
from homespun.core.settings import Paper as Paper
from homespun.core.settings import Settings as Settings
from homespun.core.statistics import Best as Best
from homespun.core.statistics import Stack as Stack
from homespun.core.statistics import Sum as Sum
from homespun.core.transforms import UpdateTransform as UpdateTransform
from homespun.evaluation.classification import LabelScoring as LabelScoring
from homespun.evaluation.language import ReplyScoring as ReplyScoring
from homespun.evaluation.language import TokenScoring as TokenScoring
from homespun.personalization.generation import generate as generate
from homespun.personalization.new_user import personalize as personalize
from homespun.personalization.replies import reply as reply
from homespun.personalization.suggestions import suggest as suggest
from homespun.runs.evaluate import evaluate as evaluate
from homespun.runs.training import load as load
from homespun.runs.training import reopen as reopen
from homespun.runs.training import train as train
from homespun.testing.contract import check_method as check_method
