"""The how-to pages name commands and options that exist, and none lets a teacher score what it has trained on."""

import re
import shlex
from pathlib import Path

import pytest
import typer

import adsieve

PAGES = sorted((Path(adsieve.__file__).parent / "docs" / "how-to").glob("*.md"))
LINE = re.compile(r"^(?:\$ |  )(?:[A-Z_]+=\S+ )*adsieve ((?:.*\\\n)*.*)$", re.MULTILINE)
COMMANDS = [(page.name, line) for page in PAGES for line in LINE.findall(page.read_text())]


def words_of(line: str) -> list[str]:
    text = re.split(r" (?:&&|\||&|>)(?: |$)", line.replace("\\\n", " "))[0]
    return [word for word in shlex.split(text, comments=True) if word != "..."]


def test_there_are_commands_to_check() -> None:
    assert len(COMMANDS) >= 40


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_a_command_exists_with_its_options(page: str, line: str) -> None:
    words = words_of(line)
    command = typer.main.get_command(adsieve.app)
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in parameter.opts}
    assert not hasattr(command, "commands")
    given = {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)}
    assert given <= known | {"--help"}


def test_teachers_of_the_feedback_page_score_what_they_have_not_seen() -> None:
    lines = [words_of(line) for page, line in COMMANDS if page == "feedback.md"]

    def option(command: list[str], name: str) -> str | None:
        (words,) = [words for words in lines if words[: len(command)] == command and "--series" not in words]
        return words[words.index(name) + 1] if name in words else None

    trained, scored = option(["heavy", "train"], "--until"), option(["heavy", "score"], "--from")
    assert trained is not None
    assert trained == scored == option(["distill", "train"], "--from")
    judged = option(["distill", "publish"], "--from")
    assert judged is not None
    assert judged == option(["distill", "train"], "--until") > trained
