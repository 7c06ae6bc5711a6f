"""The README names commands, options and a request that exist."""

import re
import shlex
from pathlib import Path

import pytest
import typer

import adsieve
from service.wire import decode_request

README = (Path(adsieve.__file__).parent / "README.md").read_text()
COMMANDS = re.findall(r"^\$ adsieve ((?:.*\\\n)*.*)$", README, re.MULTILINE)


def test_there_are_commands_to_check() -> None:
    assert len(COMMANDS) >= 14


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_readme_exists_with_its_options(line: str) -> None:
    words = shlex.split(line.replace("\\\n", " "), comments=True)
    command = typer.main.get_command(adsieve.app)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in parameter.opts}
    assert not hasattr(command, "commands")
    assert {word for word in words if word.startswith("-")} <= known


def test_the_request_of_the_readme_is_a_request() -> None:
    (body,) = re.findall(r"<<'END'\n(.*?)\nEND\n", README, re.DOTALL)
    request = decode_request(body.encode())
    assert request.scenario == "shopping"
    assert request.survivors == 100
