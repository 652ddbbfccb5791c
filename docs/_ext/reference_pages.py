"""The reference: a page for each public module, and one for the command line."""

import inspect

from generated import write
from public import MODULES, constant_home, constants, is_code, public


def heading(text, line="="):
    return f"{text}\n{line * len(text)}\n"


def indented(text):
    return "\n".join(f"   {line}".rstrip() for line in text.splitlines())


def entry(module, name, value):
    """Return the directive that documents a name."""
    full = f"{module}.{name}"
    if inspect.isclass(value):
        return f".. autoclass:: {full}\n   :members:\n"
    if is_code(value):
        return f".. autofunction:: {full}\n"
    text = constants(constant_home(module, name, value)).get(name, "")
    shown = repr(value)
    shown = f"   :value: {shown}\n" if len(shown) < 90 and "\n" not in shown else ""
    return f".. py:data:: {name}\n   :module: {module}\n{shown}\n{indented(text)}\n"


def module_page(module, names):
    """Return the page of a module: its docstring, a table of names, and each name that is documented here."""
    here = {name: value for name, (value, home) in names.items() if home == f"{module}.{name}"}
    elsewhere = [home for name, (_, home) in names.items() if home != f"{module}.{name}"]
    functions = [f"   {name}" for name, value in here.items() if is_code(value)]
    parts = [heading(module), f".. automodule:: {module}\n   :no-members:\n"]
    if functions:
        parts.append(".. autosummary::\n   :nosignatures:\n\n" + "\n".join(functions) + "\n")
    if elsewhere:
        listed = ", ".join(f":py:obj:`{home}`" for home in dict.fromkeys(elsewhere))
        parts.append(f"Also available here, but documented elsewhere: {listed}.\n")
    return "\n".join([*parts, *(entry(module, name, value) for name, value in here.items())])


def command_page():
    """Return the help of each command of the command line."""
    from vit_keras.cli.parser import COMMANDS, build_parser

    parser = build_parser(*COMMANDS)
    commands = next(action.choices for action in parser._actions if isinstance(action.choices, dict))
    blocks = [("vit-keras", parser), *((f"vit-keras {name}", command) for name, command in commands.items())]
    parts = [heading("Command line"), "What ``vit-keras COMMAND --help`` prints.\n"]
    for title, command in blocks:
        parts.append(f"{heading(title, '-')}\n.. code-block:: text\n\n{indented(command.format_help())}\n")
    return "\n".join(parts)


def write_pages(app):
    """Write all pages of the reference."""
    found = public()
    index = [heading("Reference"), "Every public name, with an example that the tests run.\n"]
    for title, modules in MODULES.items():
        rows = []
        for module in modules:
            write(f"reference/{module}.rst", module_page(module, found[module]))
            summary = (inspect.getdoc(__import__(module, fromlist=["_"])) or "").split("\n\n")[0].replace("\n", " ")
            rows.append(f"   * - :doc:`{module} <{module}>`\n     - {summary}")
        table = ".. list-table::\n   :widths: 30 70\n\n" + "\n".join(rows)
        listed = "\n".join(f"   {module} <{module}>" for module in modules)
        index.append(f"{heading(title, '-')}\n{table}\n\n.. toctree::\n   :hidden:\n\n{listed}\n")
    write("reference/command_line.rst", command_page())
    index.append(f"{heading('On the command line', '-')}\n.. toctree::\n\n   command_line\n")
    write("reference/index.rst", "\n".join(index))


def setup(app):
    app.connect("builder-inited", write_pages)
    return {"parallel_read_safe": True}
