"""The pages that reports are: templates, and files that go inline into them."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

_TEMPLATES = Path(__file__).parent / "templates"


def page_template(name: str) -> Template:
    """A template; every text that it is given is escaped, and a name that it is not given is an error."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def inline(name: str) -> Markup:
    """A style sheet or script of ours, as it stands."""
    return Markup((_TEMPLATES / name).read_text(encoding="utf-8"))
