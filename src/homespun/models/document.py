"""Characters -> BiLSTM -> [document ++ user embedding] -> MLP -> classes: FURL's document model.

`forward` computes one client at a time; `stacked` computes the same function for many clients, each with its own
weights.
"""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from homespun.models.stacked_lstm import WEIGHT_NAMES, Pooling, stacked_bilstm

Users = Literal["none", "private", "table"]


class DocumentModel(nn.Module):
    """A batch holds `text` [n, L] (0 is padding), `length` [n] and, for the table only, `author` [n].

    The user embedding: "none" has none; "private" is the parameter `user.embedding`, one per client; "table" is the
    row of `user.table` of each author.
    """

    takes_shared_weights = True

    def __init__(
        self,
        *,
        vocabulary: int,
        character_dim: int,
        lstm_dim: int,
        hidden_dim: int,
        classes: int,
        user_dim: int = 0,
        users: Users = "none",
        population: int = 0,
        user_scale: float = 0.1,
        pooling: Pooling = "final",
    ) -> None:
        super().__init__()
        _check_users(users, user_dim=user_dim, population=population)
        self.users = users
        self.pooling = pooling
        self.characters = nn.Embedding(vocabulary, character_dim)
        self.lstm = nn.LSTM(character_dim, lstm_dim, batch_first=True, bidirectional=True)
        if users == "private":
            self.user = nn.ParameterDict({"embedding": user_scale * torch.randn(user_dim)})
        elif users == "table":
            self.user = nn.ParameterDict({"table": user_scale * torch.randn(population, user_dim)})
        self.hidden = nn.Linear(2 * lstm_dim + (user_dim if users != "none" else 0), hidden_dim)
        self.output = nn.Linear(hidden_dim, classes)

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Logits [n, classes]."""
        document = self._document(batch["text"], batch["length"])
        if self.users == "private":
            own = self.user["embedding"].expand(len(document), -1)
            document = torch.cat((document, own), dim=1)
        elif self.users == "table":
            document = torch.cat((document, self.user["table"][batch["author"]]), dim=1)
        return self.output(torch.relu(self.hidden(document)))

    def _document(self, text: Tensor, length: Tensor) -> Tensor:
        """The final states of both directions, or the maximum of each state over time, [n, 2H]; 0 for an empty text."""
        at_least_one = length.clamp(min=1)  # a packed sequence cannot be empty
        characters = self.characters(text[:, : int(at_least_one.max())].long())
        packed = pack_padded_sequence(characters, at_least_one.cpu(), batch_first=True, enforce_sorted=False)
        states, (final, _) = self.lstm(packed)
        if self.pooling == "max":
            document = pad_packed_sequence(states, batch_first=True, padding_value=-torch.inf)[0].max(dim=1).values
        else:
            document = final.transpose(0, 1).flatten(1)
        return document.masked_fill((length == 0)[:, None], 0)

    def stacked(self, params: Mapping[str, Tensor], batch: Mapping[str, Tensor]) -> Tensor:
        """Logits [C, n, classes] of C clients: the result of `forward` for each client with its own parameters.

        Every batch column has a leading client axis. So has every parameter, except that a parameter shared by all
        clients may come without it.
        """
        clients, count = batch["length"].shape
        own = {name: _with_clients(params[name], clients, like) for name, like in self.named_parameters()}
        document = stacked_bilstm(
            own["characters.weight"],
            batch["text"],
            lengths=batch["length"],
            weights={name: own[f"lstm.{name}"] for name in WEIGHT_NAMES},
            pooling=self.pooling,
        )
        if self.users == "private":
            user = own["user.embedding"][:, None].expand(-1, count, -1)
            document = torch.cat((document, user), dim=2)
        elif self.users == "table":
            each_client = torch.arange(clients, device=document.device)[:, None]
            document = torch.cat((document, own["user.table"][each_client, batch["author"]]), dim=2)
        hidden = stacked_linear(document, own["hidden.weight"], bias=own["hidden.bias"])
        return stacked_linear(torch.relu(hidden), own["output.weight"], bias=own["output.bias"])


def stacked_linear(inputs: Tensor, weight: Tensor, *, bias: Tensor) -> Tensor:
    """`nn.Linear` for each client: inputs [C, n, in], weight [C, out, in], bias [C, out] -> [C, n, out]."""
    return _StackedLinear.apply(inputs, weight, bias)


class _StackedLinear(torch.autograd.Function):
    """A baddbmm whose weight gradient has the memory layout of the weight.

    Autograd would return a transposed view, which slows down every optimizer step.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return torch.baddbmm(bias[:, None], inputs, weight.mT)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        wants_inputs, wants_weight, wants_bias = ctx.needs_input_grad
        return (
            torch.bmm(grad, weight) if wants_inputs else None,
            torch.bmm(grad.mT, inputs) if wants_weight else None,
            grad.sum(1) if wants_bias else None,
        )


def _with_clients(value: Tensor, clients: int, like: Tensor) -> Tensor:
    return value if value.dim() > like.dim() else value.expand(clients, *value.shape)


def _check_users(users: str, *, user_dim: int, population: int) -> None:
    if users not in ("none", "private", "table"):
        raise ValueError(f"users is {users!r}; expected 'none', 'private' or 'table'")
    if users != "none" and user_dim < 1:
        raise ValueError(f"users={users!r} needs a user_dim of at least 1, got {user_dim}")
    if users == "table" and population < 1:
        raise ValueError(f"users='table' needs a population of at least 1, got {population}")
