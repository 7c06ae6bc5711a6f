"""The page of HTTP: routes, statuses and the fields of bodies, from the OpenAPI documents of both roles."""

import inspect
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from docs.writers.markdown import code, prose, table

HEAD = """# HTTP

Made from the OpenAPI documents by `python -m docs.write`; a running service gives its own at `/openapi.json`. Errors
are [RFC 9457](https://www.rfc-editor.org/rfc/rfc9457) problems: `type`, `title`, `status`, `detail` and, where one is
at fault, the field. Bodies of `/rank` and `/rank/batch` are JSON or MessagePack (`application/msgpack`), and answers
come in the same.
"""
UNDESCRIBED = {
    "/openapi.json": ("This description, for programs", "200"),
    "/console/": ("Leads to /console", "307"),
    "/console/index.html": ("Leads to /console", "307"),
    "/console/{name}": ("The console's scripts and styles", "200 304 404"),
}
"""Routes that OpenAPI leaves out."""


def page() -> str:
    """The whole page."""
    ranking, heavy = documents()
    parts = [HEAD]
    for title, document, app in zip(("Routes", "Routes of the role heavy"), (ranking, heavy), apps(), strict=True):
        parts += [f"## {title}\n", _routes(document["paths"], every_route(app.routes))]
    schemas = ranking["components"]["schemas"] | heavy.get("components", {}).get("schemas", {})
    parts += [_body(name, schemas[name]) for name in sorted(schemas) if schemas[name].get("properties")]
    return "\n".join(parts)


def documents() -> tuple[dict[str, Any], dict[str, Any]]:
    """OpenAPI documents of the role rank and of the role heavy."""
    ranking, heavy = apps()
    return ranking.openapi(), heavy.openapi()


def apps() -> tuple[Any, Any]:
    """The applications of both roles, over an empty store."""
    from service.app import create_app
    from service.heavy_role import create_heavy_app
    from service.settings import Settings

    with tempfile.TemporaryDirectory() as empty:
        settings = Settings(store=empty)
        return create_app(settings), create_heavy_app(settings)


def every_route(routes: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Method and path of whatever an application answers, routers within it included."""
    for route in routes:
        if included := getattr(route, "original_router", None):
            yield from every_route(included.routes)
        else:
            yield from ((method, route.path) for method in sorted(route.methods - {"HEAD"}))


def _routes(paths: Mapping[str, Any], answered: Iterable[tuple[str, str]]) -> str:
    rows = []
    for path, methods in paths.items():
        for method, route in methods.items():
            statuses = ", ".join(sorted(route.get("responses", {})))
            rows.append((code(f"{method.upper()} {path}"), _words(route), statuses))
    rows += [(code(f"{method} {path}"), *UNDESCRIBED[path]) for method, path in answered if path not in paths]
    return table(("route", "what it does", "statuses"), rows)


def _words(route: Mapping[str, Any]) -> str:
    return prose(inspect.cleandoc(route.get("description") or route.get("summary", "")).split("\n\n")[0])


def _body(name: str, schema: Mapping[str, Any]) -> str:
    required = set(schema.get("required", ()))
    rows = [
        (code(field), _type(of), "required" if field in required else _default(of), prose(of.get("description", "")))
        for field, of in schema["properties"].items()
    ]
    words = prose(inspect.cleandoc(schema.get("description", "")).split("\n\nArgs:")[0])
    return f"## {name}\n\n{words}\n\n" + table(("field", "type", "default", "meaning"), rows)


def _default(of: Mapping[str, Any]) -> str:
    return code(json.dumps(of["default"])) if "default" in of else ""


def _type(of: Mapping[str, Any]) -> str:
    if "$ref" in of:
        name = of["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for several in ("anyOf", "oneOf"):
        if several in of:
            return " or ".join(dict.fromkeys(_type(one) for one in of[several]))
    if "enum" in of:
        return ", ".join(code(json.dumps(value)) for value in of["enum"])
    kind = of.get("type", "any")
    if kind == "array":
        return f"list of {_type(of.get('items', {}))}"
    if kind == "object" and isinstance(of.get("additionalProperties"), dict):
        return f"object of {_type(of['additionalProperties'])}"
    return str(kind)
