"""Environment variables in a job file: `${VAR}`, `${VAR:-default}`, `${VAR:?message}`.

As in a shell, `:-` and `:?` also apply to a variable that is set but empty. `$${` is a literal
`${`. Prompts are never interpolated: their braces are Jinja2's, and data may look like this too.
"""

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?:(:-|:\?)([^{}]*))?\}|\$\{")


def interpolate(text: str, environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """The text with its variables filled in, and what is wrong with them.

    >>> interpolate("s3://${BUCKET:-docs}/in", {})
    ('s3://docs/in', [])
    """
    problems: list[str] = []

    def value_of(match: re.Match[str]) -> str:
        name, operator, argument = match.groups()
        if match[0] == "$${":
            return "${"
        if name is None:
            problems.append(_malformed(text[match.start() :]))
        elif operator is not None and environment.get(name):
            return environment[name]
        elif operator == ":-":
            return str(argument)
        elif operator == ":?":
            problems.append(f"environment variable {name}: {argument or 'must be set'}")
        elif name in environment:
            return environment[name]
        else:
            problems.append(
                f"environment variable {name} is not set; set it, or write ${{{name}:-default}}"
            )
        return match[0]

    return _REFERENCE.sub(value_of, text), problems


def _malformed(rest: str) -> str:
    seen = rest[: rest.index("}") + 1] if "}" in rest else rest
    return (
        f"cannot read {seen[:40]!r}; a variable is written ${{NAME}}, ${{NAME:-default}} or"
        " ${NAME:?message}, and a literal '${' is '$${'"
    )
