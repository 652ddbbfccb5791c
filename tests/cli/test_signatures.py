"""What the command line reads of functions is what they are, and every option reaches a function that takes it."""

import importlib
import inspect

import pytest

from vit_keras.cli.parser import COMMANDS
from vit_keras.cli.signatures import arguments_of, head_of

pytestmark = pytest.mark.any_backend


def original(path):
    module, _, name = path.rpartition(".")
    return inspect.unwrap(getattr(importlib.import_module(f"vit_keras.{module}"), name))


@pytest.mark.parametrize("name", COMMANDS)
def test_heads_are_those_of_the_functions(name):
    for path in (COMMANDS[name].function, *COMMANDS[name].more):
        read, real = (inspect.signature(each).parameters for each in (head_of(path), original(path)))
        assert {n: (p.kind, p.default) for n, p in read.items()} == {n: (p.kind, p.default) for n, p in real.items()}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_option_has_an_argument_and_each_change_an_option(name):
    command = COMMANDS[name]
    known = {n for path in (command.function, *command.more) for n in inspect.signature(original(path)).parameters}
    options = arguments_of(command)
    assert options.keys() <= known
    assert command.names.keys() | command.choices.keys() <= options.keys()
    assert set(command.without.split()) <= known - options.keys()
