"""The string under a field, read from the source of its section when documentation is wanted."""

import ast
import inspect
import textwrap

from batchgen.config.section import Section


def field_manuals(section: type[Section]) -> dict[str, str]:
    """Field name to the string below it, on one line; bases are looked at too."""
    manuals: dict[str, str] = {}
    for base in reversed(section.__mro__):
        if base is not Section and issubclass(base, Section):
            manuals |= _strings_below_fields(base)
    return manuals


def section_manual(section: type[Section]) -> str:
    """The docstring of a section, on one line a paragraph."""
    text = inspect.cleandoc(section.__doc__ or "")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _strings_below_fields(section: type[Section]) -> dict[str, str]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    if not isinstance(tree, ast.ClassDef):
        return {}
    found: dict[str, str] = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
            and isinstance(below.value.value, str)
        ):
            found[field.target.id] = " ".join(below.value.value.split())
    return found
