"""BaseModules: find the parameters of a network that a module of its checkpoint became, by the module's name in PEFT.

PEFT names the modules of transformers; a spec names the checkpoint's tensors. They agree, but for what stands before
the layers, and for experts, which transformers keeps stacked whatever the files do.
"""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from inference.errors import MissingTensor
from inference.modelling.lora.shapes import piece_shape
from inference.modelling.spec import ModelSpec
from inference.modelling.specs.parts import Shape
from inference.modelling.specs.sources import Piece

ShapeOf = Callable[[str], Shape]
"""Shape of a stored tensor of the base by its name."""

HEAD = "lm_head"
EMBEDDING = "embed_tokens"
TABLES = (EMBEDDING, "embed_positions", "layer_inputs.table")
"""Our modules that are read row by row."""
_ROOTS = frozenset({
    "backbone", "base_model", "decoder", "gpt_neox", "language_model", "llm", "model", "rwkv", "text_model",
    "thinker", "transformer",
})  # fmt: skip
_SAME = {
    "block_sparse_moe": "mlp", "shared_mlp": "shared_expert", "shared_experts": "shared_expert", "attn": "self_attn",
    "wq_du": "q_proj", "wk_dv": "k_proj", "wv_dv": "v_proj", "wr_du": "r_proj", "wo_ud": "o_proj",
    "gate_attn": "gate_proj", "attn_sink_proj": "sink_proj",
    "attention": "self_attn", "wq": "q_proj", "wo": "o_proj", "wkv_a_with_mqa": "kv_a_proj_with_mqa",
}  # fmt: skip
"""Parts of names that transformers 5 calls otherwise than the files do.

Mixtral's and Granite's, then Inkling's, then those of Mistral Large 4's attention.
"""
_INSERTED = frozenset({"forget_gate"})
"""Parts of names that transformers 5 has and the files don't: GLM-5.3's."""
_BARE = frozenset({"weight_proj"})
"""Matrices that Inkling 2's files call by their module's name."""
_STACKS = {"gate_up_proj": "gate_up_proj", "up_proj": "up_proj", "down_proj": "down_proj"}


@dataclass(frozen=True, slots=True)
class Place:
    """Rows of a parameter that a module's matrix became.

    Attributes:
        owner: Our module, whose parameter it is.
        leaf: The parameter's name there.
        piece: How they were taken from the stored tensor.
        stored: Its shape.
        first_row, num_rows: Which rows; of each expert, if the parameter is a stack.
        expert: Number of the expert; None: the parameter is a matrix, or the stored tensor has all experts.
        is_head: The product with a tied embedding is meant, not its rows.
    """

    owner: str
    leaf: str
    piece: Piece
    stored: Shape
    first_row: int
    num_rows: int
    expert: int | None = None
    is_head: bool = False


class BaseModules:
    """The modules of one base.

    Args:
        spec: What the base is.
        shape_of: Shapes of its stored tensors.
    """

    def __init__(self, spec: ModelSpec, shape_of: ShapeOf) -> None:
        self._spec = spec
        self._shape_of = shape_of
        self._shapes = spec.parameter_shapes()
        self._tensors: dict[str, list[tuple[str, int]]] = defaultdict(list)
        for parameter, source in spec.parameters.items():
            for number, piece in enumerate(source.pieces):
                self._tensors[_normal(piece.name)].append((parameter, number))

    @property
    def model_type(self) -> str:
        """Name of the family."""
        return self._spec.model_type

    @property
    def hidden_size(self) -> int:
        """Values of a row of the residual stream."""
        return self._spec.hidden_size

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return self._spec.vocab_size

    def find(self, module: str, leaf: str = "weight") -> list[Place]:
        """The places of a module's ``weight`` or ``bias``; empty: the base has none of that name."""
        required = _normal(f"{module}.{leaf}" if leaf else module)
        if required == f"{HEAD}.weight" and self._spec.tie_word_embeddings and required not in self._tensors:
            return self._head_of_embedding()
        for name, expert in _with_experts(required):
            if name in self._tensors:
                return [self._place(parameter, number, expert) for parameter, number in self._tensors[name]]
        return self._find_shared(required)

    def _find_shared(self, required: str) -> list[Place]:
        """The places of a module of a block that a layer shares with an earlier one, which the files have once."""
        number = _layer_number(required)
        if number is None or number >= len(self._spec.layers):
            return []
        prologue = self._spec.layers[number].prologue
        for first, layer in enumerate(self._spec.layers[:number]):
            if prologue is not None and layer.prologue is not None and layer.prologue.block == prologue.block:
                return self.find(required.replace(f".{number}.", f".{first}.", 1), "")
        return []

    def find_stack(self, module: str, parameter: str) -> list[Place]:
        """The place of a stacked parameter of experts, as transformers holds it: (E, rows, inputs).

        Args:
            module: Ends in ``experts``.
            parameter: ``gate_up_proj``, ``up_proj`` or ``down_proj``.
        """
        stored = self.find(f"{module}.{parameter}", "")
        if stored:
            return stored
        # The files have the experts one by one: the stack is ours, gate above up as transformers joins them.
        number = _layer_number(module)
        for ours, source in self._spec.parameters.items():
            owner, _, leaf = ours.rpartition(".")
            of_layer = number is not None and any(_layer_number(piece.name) == number for piece in source.pieces)
            if of_layer and owner.endswith(".experts") and leaf == _STACKS.get(parameter):
                shape = self._shapes[ours]
                return [Place(owner, leaf, Piece(f"{module}.{parameter}"), shape, 0, shape[1])]
        return []

    def has_matrix(self, target: str) -> bool:
        """Whether a matrix of the base ends in a name; one for each expert doesn't count, as PEFT stacks them."""
        end = f".{target}.weight"
        return any(f".{name}".endswith(end) and "{e}" not in name for name in self._tensors)

    def similar(self, module: str) -> str:
        """Names of the base that look like one, for messages."""
        names = {name.removesuffix(".weight") for name in self._tensors if name.endswith(".weight")}
        found = difflib.get_close_matches(_normal(module), sorted(names)[:20000], 2, 0.6)
        return ", ".join(found) if found else ", ".join(sorted(names)[:2])

    def _head_of_embedding(self) -> list[Place]:
        shape = self._shapes[f"{EMBEDDING}.weight"]
        return [Place(EMBEDDING, "weight", Piece(f"{HEAD}.weight"), shape, 0, shape[0], is_head=True)]

    def _place(self, parameter: str, number: int, expert: int | None) -> Place:
        source = self._spec.parameters[parameter]
        first = 0
        for piece in source.pieces[:number]:
            first += piece_shape(piece, self._stored(piece, expert))[0]
        piece = source.pieces[number]
        stored = self._stored(piece, expert)
        owner, _, leaf = parameter.rpartition(".")
        shape = piece_shape(piece, stored)
        is_stack = len(shape) == 3
        return Place(owner, leaf, piece, stored, first, shape[1] if is_stack else shape[0], expert)

    def _stored(self, piece: Piece, expert: int | None) -> Shape:
        name = piece.name if expert is None else piece.name.replace("{e}", str(expert))
        if "{e}" in name:
            raise MissingTensor(f"{name} is one tensor for each expert, and no expert is named.", param=name)
        try:
            return tuple(self._shape_of(name))
        except KeyError:  # an expert of a number that the base hasn't
            raise MissingTensor(f"the adapter changes {name[:200]}, which the base doesn't have.", param=name) from None


def _normal(name: str) -> str:
    """A tensor's name without what stands before the layers, which files and transformers spell differently."""
    parts = name.split(".")
    while len(parts) > 2 and parts[0] in _ROOTS:
        parts.pop(0)
    if parts[-1] in _BARE:
        parts.append("weight")
    return ".".join(_SAME.get(part, part) for part in parts if part not in _INSERTED)


def _with_experts(name: str) -> list[tuple[str, int | None]]:
    """The name as it is, then with each of its numbers as the expert's."""
    found: list[tuple[str, int | None]] = [(name, None)]
    parts = name.split(".")
    for at, part in enumerate(parts):
        if re.fullmatch(r"\d{1,5}", part):
            found.append((".".join((*parts[:at], "{e}", *parts[at + 1 :])), int(part)))
    return found


def _layer_number(name: str) -> int | None:
    """The first number in a name: that of the layer."""
    match = re.search(r"\.(\d{1,5})\.", f".{name}.")
    return None if match is None else int(match[1])
