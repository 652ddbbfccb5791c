"""Classes whose annotated attributes, with a text under each, are their arguments and their documentation."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
from typing import Any, TypeVar

__all__ = ["FieldsDoc", "documented", "texts_of"]

_Class = TypeVar("_Class", bound=type)

_SECTION = re.compile(
    r"^(?:Call arguments|Input shape|Input and output shape|Output shape|Attributes|Raises|Example):$", re.MULTILINE
)


def texts_of(cls: type) -> dict[str, str]:
    """Return the text under each annotated attribute in the source of a class; none where there is no source."""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return {}
    body = getattr(tree, "body", [])
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


class FieldsDoc:
    """The docstring of a class with its fields as `Args:`, made when it is first read: that takes milliseconds."""

    def __init__(self, doc: str, fields: Any, *others: type):
        self.doc = inspect.cleandoc(doc)
        self.fields = fields
        self.others = others  # classes whose fields of the same names have the same texts

    def __get__(self, instance: Any, cls: type) -> str:
        texts: dict[str, str] = {}
        for each in (*self.others, *reversed(cls.__mro__)):
            texts.update(texts_of(each) if each.__module__.partition(".")[0] != "keras" else {})
        entries = [f"{name}: {texts[name]}".replace("\n", "\n    ") for name in self.fields if name in texts]
        section = _SECTION.search(self.doc)
        place = section.start() if section else len(self.doc)
        before, after = self.doc[:place].rstrip(), self.doc[place:]
        listed = ["Args:\n" + textwrap.indent("\n".join(entries), "    ")] if entries else []
        text = "\n\n".join([before, *listed, *([after] if after else [])])
        cls.__doc__ = text
        return text


def documented(cls: _Class) -> _Class:
    """Give a dataclass a docstring with the text under each of its fields."""
    doc: Any = FieldsDoc(cls.__doc__ or "", [field.name for field in dataclasses.fields(cls)])
    cls.__doc__ = doc
    return cls
