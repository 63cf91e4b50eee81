"""Record what a function asks of PyTorch's operators, and run it again without Python.

A decode step of a small model spends a third of its time in Python between kernels that take microseconds. The same
step calls the same operators with the same weights whatever its tokens are, so they are recorded once, below Python
(``TorchDispatchMode``), and the recording is run by ``src/program.cpp``.

What Python computed from the inputs' values or shapes becomes a constant of the recording. A recording is therefore
made twice, from different inputs, and only used if both are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Function = Callable[[], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Register:
    """A value that a run computes or is given."""

    number: int


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A tensor from outside (a weight, a state): the very same one in every run."""

    tensor: torch.Tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and other.tensor is self.tensor

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operator.

    Attributes:
        name, overload: Which.
        arguments: In the schema's order, defaults included: registers, held tensors, plain values, or lists of these.
        results: A register for each result, or for each element of the only result, a list.
        gives_list: The latter.
    """

    name: str
    overload: str
    arguments: tuple[Any, ...]
    results: tuple[Register, ...]
    gives_list: bool


@dataclass(slots=True)
class Recording:
    """What a function did.

    Attributes:
        num_inputs: Registers 0 … are these.
        calls: In order.
        output: Of the function.
        obstacle: Why it can't be run again, if so.
    """

    num_inputs: int
    calls: list[Call] = field(default_factory=list)
    output: Register | Held | None = None
    obstacle: str | None = None

    def same_as(self, other: Recording) -> bool:
        """Whether both can be run again and would do the same."""
        if self.obstacle is not None or other.obstacle is not None:
            return False
        return self.num_inputs == other.num_inputs and self.calls == other.calls and self.output == other.output


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the calls below it.

    Args:
        inputs: Tensors that another run may replace.
    """

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = Recording(len(inputs))
        self._registers = {id(tensor): Register(number) for number, tensor in enumerate(inputs)}
        # A tensor's id is only its own while it lives.
        self._alive: list[torch.Tensor] = list(inputs)
        self._count = len(inputs)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; the default imports the compiler, a second and 130 MiB, at the first call."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.recording.obstacle is None:
            self._record_call(func, args, kwargs, result)
        return result

    def value(self, value: Any) -> Any:
        """How a recording names a value."""
        if isinstance(value, torch.Tensor):
            known = self._registers.get(id(value))
            return Held(value) if known is None else known
        if isinstance(value, list | tuple):
            return [self.value(element) for element in value]
        return value

    def _record_call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        schema = func._schema
        tags = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output, torch.Tag.nondeterministic_seeded}
        if tags & set(func.tags):
            self.recording.obstacle = f"{func} depends on values"
            return
        given = list(args) + [kwargs.get(item.name, item.default_value) for item in schema.arguments[len(args) :]]
        arguments = tuple(self.value(value) for value in given)  # before the results: some are arguments too
        gives_list = isinstance(result, list)
        results = list(result) if isinstance(result, list | tuple) else [result]
        if not all(isinstance(one, torch.Tensor) for one in results):
            self.recording.obstacle = f"{func} gives something else than tensors"
            return
        if len(results) == 1 and not schema.is_mutable and any(results[0] is value for value in given):
            return  # nothing was done: a conversion to what the tensor is already
        registers = tuple(self._register(one) for one in results)
        self.recording.calls.append(
            Call(schema.name, schema.overload_name, arguments, registers, gives_list),
        )

    def _register(self, tensor: torch.Tensor) -> Register:
        found = Register(self._count)
        self._count += 1
        self._registers[id(tensor)] = found
        self._alive.append(tensor)
        return found


def record(function: Function, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, Recording]:
    """Call a function once and note what it asks of PyTorch.

    Args:
        function: Reads ``inputs``, weights and states; what it changes in place, a run changes too.
        inputs: Given anew to every run.

    Returns:
        The function's result and the recording.
    """
    recorder = _Recorder(inputs)
    with recorder:
        output = function()
    recording = recorder.recording
    recording.output = recorder.value(output)
    return output, recording


class Program:
    """A recording in the form that runs.

    Args:
        recording: Without an obstacle.

    Raises:
        ValueError: It has a value that can't be passed on.
    """

    def __init__(self, recording: Recording) -> None:
        if recording.obstacle is not None:
            raise ValueError(recording.obstacle)
        self._native = torch.classes.blazr.Program()
        self._registers: dict[Register, int] = {
            Register(number): self._native.add_register() for number in range(recording.num_inputs)
        }
        self._held: dict[int, int] = {}
        inputs = list(self._registers.values())
        for call in recording.calls:
            self._add(call)
        self._native.finish(inputs, [self._value(recording.output)])

    def __len__(self) -> int:
        """Number of calls."""
        return int(self._native.num_calls())

    def run(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """Do it again with other inputs, of the recorded shapes where the recorded function looked at them."""
        results: list[torch.Tensor] = self._native.run(list(inputs))
        return results[0]

    def _add(self, call: Call) -> None:
        arguments = [self._value(value) for value in call.arguments]
        if call.gives_list:
            made = self._native.add_register()
            self._native.add_call(call.name, call.overload, arguments, [made])
            results = [self._new(register) for register in call.results]
            self._native.add_unpacking(made, results)
            return
        results = [self._new(register) for register in call.results]
        self._native.add_call(call.name, call.overload, arguments, results)

    def _new(self, register: Register) -> int:
        number: int = self._native.add_register()
        self._registers[register] = number
        return number

    def _value(self, value: Any) -> int:
        if isinstance(value, Register):
            number: int = self._registers[value]
            return number
        if isinstance(value, Held):
            known = self._held.get(id(value.tensor))
            if known is None:
                known = int(self._native.add_constant(value.tensor))
                self._held[id(value.tensor)] = known
            return known
        if isinstance(value, list) and any(isinstance(element, Register | Held) for element in value):
            if not all(isinstance(element, Register | Held) for element in value):
                raise ValueError("a list of tensors and other things can't be passed to a program")
            made: int = self._native.add_list([self._value(element) for element in value])
            return made
        try:
            constant: int = self._native.add_constant(value)
        except RuntimeError as error:
            raise ValueError(f"{value!r} can't be a constant of a program") from error
        return constant
