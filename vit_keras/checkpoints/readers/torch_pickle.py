"""Read PyTorch's pickles without PyTorch and without executing anything.

A pickle is a program for a small stack machine. Python's own machine imports and calls what the program names. The
machine here does neither: a name remains a name (`Name`), and an object remains a record of its class and state
(`Opaque`). A fixed table says what the functions that PyTorch writes into its files would have built. A program that
calls another function of Python, NumPy or PyTorch is refused, and the error names the function. What calls a class of
the user's own, such as an `Enum`, remains a record too, and is reported as left out.
"""

from __future__ import annotations

import dataclasses
import io
import pickletools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any

__all__ = ["Name", "Opaque", "Refused", "Storage", "Tensor", "load", "load_legacy", "rank", "state_dicts", "twin_of"]

LIMIT_BYTES = 1 << 26  # of one pickle; that of a ViT-g with the state of its optimizer has less than 1 MB
LIMIT_STEPS = 1_000_000
LIMIT_LINE = 1 << 16  # bytes of a number or a name in text
LIMIT_COPIED = 1 << 24  # items or characters that the calls in one pickle may copy
LIMIT_NAME = 512  # characters of a module's or class's name
LIMIT_DEPTH = 64  # of modules in modules of a TorchScript archive
LIMIT_TENSORS = 200_000


class Refused(ValueError):
    """A file is refused; the message follows its name: "file.pth …"."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Name:
    """A class or function that the file names. It is never looked up."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclasses.dataclass(eq=False, slots=True)
class Opaque:
    """An object of a class that is never constructed."""

    of: Name
    state: Any = None


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Storage:
    """Consecutive values in the file."""

    dtype: str | None  # a name in NumPy or ml_dtypes; None for bytes whose type a tensor gives
    key: str  # its name in the file
    count: int  # number of values
    offset: int = 0  # first value, counted from the start of the storage named `key`


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Tensor:
    """A view of a storage."""

    storage: Storage | None  # None if there is a `problem`
    offset: int = 0  # first value, counted from the start of the storage
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()  # in values
    dtype: str | None = None  # a name in NumPy or ml_dtypes
    problem: str | None = None  # why it cannot be read, after "the tensor …"


_DTYPES = {  # by the names of torch's storages and dtypes
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "QInt8Storage": "int8",
    "QUInt8Storage": "uint8",
    "QInt32Storage": "int32",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    **{t: t for t in ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "bool")},
    **{t: t for t in ("uint8", "uint16", "uint32", "uint64", "complex64", "complex128")},
    **{t: t for t in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")},
}


def _integers(values: Any) -> tuple[int, ...]:
    if not isinstance(values, tuple | list) or len(values) > 32:
        raise ValueError("the shape of a tensor is malformed")
    if any(type(value) is not int or not 0 <= value < 1 << 63 for value in values):
        raise ValueError("the shape of a tensor is not made of whole numbers")
    return tuple(values)


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, dtype: str | None = None) -> Tensor:
    if not isinstance(storage, Storage):
        raise ValueError("a tensor has no storage")
    shape, strides, (offset,) = _integers(shape), _integers(strides), _integers([offset])
    if len(shape) != len(strides):
        raise ValueError(f"a tensor of shape {shape} has the strides {strides}")
    dtype = dtype or storage.dtype
    if dtype is None:
        return Tensor(None, problem="has values of an unknown type")
    return Tensor(storage, offset, shape, strides, dtype)


def _tensor_v2(storage, offset, shape, strides, _gradient=None, _hooks=None, flags=None, *_rest) -> Tensor:
    if isinstance(flags, dict) and flags.get("neg"):  # as x.conj().imag: the stored values have the opposite sign
        return Tensor(None, problem="is a negative view (is_neg), which is not read: save tensor.resolve_neg()")
    return _tensor(storage, offset, shape, strides)


def _tensor_v3(storage, offset, shape, strides, _gradient, _hooks, dtype, *_rest) -> Tensor:
    known = isinstance(dtype, Name) and dtype.module == "torch" and _DTYPES.get(dtype.name)
    if not known:
        kind = dtype if isinstance(dtype, Name) else "<unknown>"
        return Tensor(None, problem=f"has values of the type {kind}, which is not read")
    return _tensor(storage, offset, shape, strides, known)


def _typed_again(function: Any, _type: Any, arguments: Any, *_state: Any) -> Any:
    if not str(function).startswith("torch._utils._rebuild_") or not isinstance(arguments, tuple):
        raise ValueError("a tensor of a class of its own is malformed")
    return _call(function, arguments)


def _first(value: Any, *_rest: Any) -> Any:
    return value


def _dictionary(*arguments: Any) -> dict[Any, Any]:
    """Build an `OrderedDict`, empty or of pairs; Python 2 wrote the latter."""
    result = {}
    for pair in arguments[0] if arguments and isinstance(arguments[0], list) else ():
        key, value = pair
        result[_checked_key(key)] = value
    return result


def _copied_dictionary(*arguments: Any) -> dict[Any, Any]:
    return dict(arguments[0]) if arguments and isinstance(arguments[0], dict) else {}


def _listed(*arguments: Any) -> Any:
    return arguments[0] if arguments else []


def _latin_1(text: Any, encoding: Any = "utf-8", *_errors: Any) -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1", "utf-8", "utf8", "ascii"):
        raise Refused("wants to run _codecs.encode on something that is not text; it was not run.")
    return text.encode(encoding)


def _unreadable(kind: str) -> Callable[..., Tensor]:
    return lambda *_: Tensor(None, problem=f"is {kind}, which is not read")


_BUILDS: dict[str, Callable[..., Any]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor_v2,
    "torch._utils._rebuild_tensor_v3": _tensor_v3,
    "torch._utils._rebuild_parameter": _first,
    "torch._utils._rebuild_parameter_with_state": _first,
    "torch._tensor._rebuild_from_type_v2": _typed_again,
    "torch._utils._rebuild_qtensor": _unreadable("quantized"),
    "torch._utils._rebuild_sparse_tensor": _unreadable("sparse"),
    "torch._utils._rebuild_sparse_csr_tensor": _unreadable("sparse"),
    "torch._utils._rebuild_nested_tensor": _unreadable("nested"),
    "torch._utils._rebuild_meta_tensor_no_storage": _unreadable("on the meta device and has no values"),
    "torch._utils._rebuild_device_tensor_from_numpy": _unreadable("from a device of its own"),
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": _first,
    "torch.jit._pickle.build_intlist": _first,
    "torch.jit._pickle.build_doublelist": _first,
    "torch.jit._pickle.build_boollist": _first,
    "torch.jit._pickle.build_tensorlist": _first,
    "torch.jit._pickle.restore_type_tag": _first,
    "torch.Size": lambda *sizes: _integers(sizes[0]) if sizes else (),
    "collections.OrderedDict": _dictionary,
    "collections.defaultdict": lambda *_: {},
    "collections.Counter": _copied_dictionary,
    "collections.deque": _listed,
    "builtins.set": _listed,
    "builtins.frozenset": _listed,
    "builtins.list": _listed,
    "_codecs.encode": _latin_1,
}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Data that training scripts save next to the weights. Only its class and arguments are kept.
_DATA = _words(
    """
    argparse.Namespace types.SimpleNamespace functools.partial enum.Enum
    pathlib.Path pathlib.PosixPath pathlib.WindowsPath pathlib.PurePath pathlib.PurePosixPath pathlib.PureWindowsPath
    pathlib._local.Path pathlib._local.PosixPath pathlib._local.WindowsPath
    datetime.date datetime.time datetime.datetime datetime.timedelta datetime.timezone
    decimal.Decimal fractions.Fraction uuid.UUID
    builtins.long builtins.unicode builtins.xrange
    builtins.bool builtins.int builtins.float builtins.complex builtins.str builtins.bytes builtins.bytearray
    builtins.tuple builtins.dict builtins.slice builtins.range builtins.object
    numpy.dtype numpy.ndarray numpy.core.multiarray.scalar numpy._core.multiarray.scalar
    numpy.core.multiarray._reconstruct numpy._core.multiarray._reconstruct
    numpy.core.numeric._frombuffer numpy._core.numeric._frombuffer
    numpy.random._pickle.__randomstate_ctor numpy.random._pickle.__generator_ctor
    numpy.random._pickle.__bit_generator_ctor
    torch.device torch.Generator torch.serialization._get_layout
    """
)

_RECONSTRUCTORS = {"copyreg._reconstructor", "copy_reg._reconstructor", "copyreg.__newobj__"}
_PYTHON_2 = {"__builtin__": "builtins", "copy_reg": "copyreg"}


def _refuse(name: Name | str) -> Refused:
    return Refused(
        f"wants to run {name}; it was not run. A file of weights does not need it. Do not open this one with "
        "torch.load either, unless you trust its source."
    )


def _named(module: Any, name: Any) -> Name:
    """Return a name on the stack. A name from Python itself must be in the tables: no other is data."""
    if not isinstance(module, str) or not isinstance(name, str) or len(module) + len(name) > LIMIT_NAME:
        raise ValueError("the name of a class is malformed")
    named = Name(_PYTHON_2.get(module, module), name)
    known = str(named) in _BUILDS or str(named) in _DATA or str(named) in _RECONSTRUCTORS
    if not known and (named.module.split(".")[0] in sys.stdlib_module_names or not named.module):
        raise _refuse(named)
    return named


def _call(function: Any, arguments: Any) -> Any:
    """Return the object that a call in the file would have built. Only the entry of the table is called."""
    if not isinstance(function, Name) or not isinstance(arguments, tuple):
        raise ValueError("it calls something that is not a function")
    if build := _BUILDS.get(str(function)):
        return build(*arguments)
    if str(function) in _RECONSTRUCTORS and arguments:
        return _instance(arguments[0])
    if str(function) in _DATA or _is_foreign(function):
        return Opaque(function, arguments)
    raise _refuse(function)


def _is_foreign(name: Name) -> bool:
    """Return whether a name is from a user's module, not from Python or the libraries that write weights."""
    return name.module.split(".")[0] not in (*sys.stdlib_module_names, "torch", "numpy", "__builtin__", "")


def _instance(of: Any) -> Any:
    """Return a new dictionary for a class of dictionaries, and a record of its class for any other."""
    if not isinstance(of, Name):
        raise ValueError("an object has no class")
    if str(of) in ("collections.OrderedDict", "collections.defaultdict", "collections.Counter", "builtins.dict"):
        return {}
    return Opaque(of)


def _checked_key(key: Any) -> Any:
    """Return a key of a dictionary whose hash costs no more than reading it did, and refuse any other."""
    for part in key if isinstance(key, tuple) else (key,):
        small = abs(part) < 1 << 63 if isinstance(part, int) else True
        if not (small and (part is None or isinstance(part, str | bytes | int | float | Name | Opaque | Tensor))):
            raise ValueError("a dictionary has a key that is neither a text nor a number")
    return key


class _Bounded:
    """A file for `pickletools` that gives no more bytes than it has or than are allowed."""

    def __init__(self, file: IO[bytes], limit: int):
        start = file.tell()
        self._end = min(start + limit, file.seek(0, io.SEEK_END))
        self._file = file
        file.seek(start)

    def read(self, count: int) -> bytes:
        if count > self._end - self._file.tell():
            raise ValueError("its pickle breaks off, or is longer than any state dict")
        return self._file.read(count)

    def readline(self) -> bytes:
        return self._file.readline(min(self._end - self._file.tell(), LIMIT_LINE))

    def tell(self) -> int:
        return self._file.tell()


_PUSHES = _words(
    """
    INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING UNICODE BINUNICODE
    SHORT_BINUNICODE BINUNICODE8 BINBYTES SHORT_BINBYTES BINBYTES8 BYTEARRAY8
    """
)
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_FRESH = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_SET": list}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Machine:
    """The stack machine. `persistent` turns a persistent id, a tuple, into a value."""

    def __init__(self, persistent: Callable[[tuple[Any, ...]], Any], left_out: set[str] | None = None):
        self.persistent = persistent
        self.left_out = set() if left_out is None else left_out
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.copied = 0

    def run(self, file: IO[bytes]) -> Any:
        bounded: Any = _Bounded(file, LIMIT_BYTES)  # has what `genops` calls, and no more
        for step, (opcode, argument, _) in enumerate(pickletools.genops(bounded)):
            if step > LIMIT_STEPS:
                raise ValueError("its pickle has more steps than any state dict needs")
            name = opcode.name
            if name in _PUSHES:
                self.stack.append(argument)
            elif name in _CONSTANTS:
                self.stack.append(_CONSTANTS[name])
            elif name in _FRESH:
                self.stack.append(_FRESH[name]())
            elif name in _TUPLES:
                self.stack.append(tuple(self.pop_many(_TUPLES[name])))
            elif name == "STOP":
                return self.pop()
            else:
                step_of = getattr(self, f"do_{name.lower()}", None)
                if step_of is None:
                    raise Refused(f"has the pickle instruction {name}, which no file of weights has; it was not run.")
                step_of(argument)
        raise ValueError("its pickle has no end")

    def pop(self) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise ValueError("its pickle takes from an empty stack")
        return self.stack.pop()

    def pop_many(self, count: int) -> list[Any]:
        return [self.pop() for _ in range(count)][::-1]

    def pop_mark(self) -> list[Any]:
        if not self.marks:
            raise ValueError("its pickle misses a mark")
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def top(self, *kinds: type) -> Any:
        if not self.stack or not isinstance(self.stack[-1], kinds):
            raise ValueError("its pickle puts items into something that is not a container")
        return self.stack[-1]

    def do_proto(self, version: int) -> None:
        if version > 5:
            raise ValueError(f"its pickle has the unknown protocol {version}")

    def do_frame(self, _size: int) -> None:
        pass

    def do_mark(self, _: None) -> None:
        self.marks.append(len(self.stack))

    def do_pop(self, _: None) -> None:
        if self.marks and len(self.stack) == self.marks[-1]:
            self.marks.pop()
        else:
            self.pop()

    def do_pop_mark(self, _: None) -> None:
        self.pop_mark()

    def do_dup(self, _: None) -> None:
        self.stack.append(self.top(object))

    def do_memoize(self, _: None) -> None:
        self.memo[len(self.memo)] = self.top(object)

    def do_put(self, index: int) -> None:
        self.memo[index] = self.top(object)

    do_binput = do_long_binput = do_put

    def do_get(self, index: int) -> None:
        if index not in self.memo:
            raise ValueError("its pickle refers to an object that does not exist")
        self.stack.append(self.memo[index])

    do_binget = do_long_binget = do_get

    def do_tuple(self, _: None) -> None:
        self.stack.append(tuple(self.pop_mark()))

    def do_list(self, _: None) -> None:
        self.stack.append(self.pop_mark())

    do_frozenset = do_list

    def do_dict(self, _: None) -> None:
        values = self.pop_mark()
        self.stack.append({})
        self.set_items(values)

    def do_append(self, _: None) -> None:
        self.append_items([self.pop()])

    def do_appends(self, _: None) -> None:
        self.append_items(self.pop_mark())

    do_additems = do_appends

    def append_items(self, values: list[Any]) -> None:
        target = self.top(list, Opaque)
        if isinstance(target, list):
            target.extend(values)

    def do_setitem(self, _: None) -> None:
        self.set_items(self.pop_many(2))

    def do_setitems(self, _: None) -> None:
        self.set_items(self.pop_mark())

    def set_items(self, values: list[Any]) -> None:
        target = self.top(dict, Opaque)
        if len(values) % 2:
            raise ValueError("a dictionary has a key without a value")
        if isinstance(target, dict):
            for key, value in zip(values[::2], values[1::2]):
                target[_checked_key(key)] = value

    def do_global(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self.stack.append(_named(module, name))

    def do_stack_global(self, _: None) -> None:
        self.stack.append(_named(*self.pop_many(2)))

    def do_reduce(self, _: None) -> None:
        function, arguments = self.pop_many(2)
        if isinstance(arguments, tuple):
            self.copied += sum(len(a) for a in arguments if isinstance(a, str | list | dict))
        if self.copied > LIMIT_COPIED:
            raise ValueError("its pickle copies more than any state dict needs")
        self.call(function, arguments)

    def call(self, function: Any, arguments: Any) -> None:
        self.stack.append(_call(function, arguments))
        if _is_foreign(function):
            self.left_out.add(str(function))

    def do_inst(self, argument: str) -> None:
        module, _, name = argument.partition(" ")
        self.call(_named(module, name), tuple(self.pop_mark()))

    def do_obj(self, _: None) -> None:
        of, *arguments = self.pop_mark() or [None]
        self.call(of, tuple(arguments))

    def do_newobj(self, _: None) -> None:
        of, _arguments = self.pop_many(2)
        self.stack.append(_instance(of))

    def do_newobj_ex(self, _: None) -> None:
        of, _arguments, _keywords = self.pop_many(3)
        self.stack.append(_instance(of))

    def do_build(self, _: None) -> None:
        state = self.pop()
        target = self.top(object)
        if isinstance(target, Opaque):
            target.state = state  # kept, not applied: no __setstate__ runs
        elif not isinstance(target, dict | list | Tensor):
            raise ValueError("its pickle sets the state of an object that has none")

    def do_binpersid(self, _: None) -> None:
        self.stack.append(self.persistent(self.pop()))


def _persistent(identifier: Any) -> Any:
    """Return the storage of a persistent id, or the class of a module in the legacy format."""
    if not isinstance(identifier, tuple) or not identifier:
        raise ValueError("a persistent id is malformed")
    if identifier[0] == "module" and len(identifier) > 1:
        return identifier[1]
    if len(identifier) < 5:
        raise ValueError("a storage is malformed")
    kind, of, key, _location, count = identifier[:5]
    view = identifier[5:]
    if kind != "storage" or not isinstance(of, Name) or not isinstance(key, str) or len(key) > LIMIT_NAME:
        raise ValueError("a storage is malformed")
    (count,) = _integers([count])
    offset = 0
    if view and view[0] is not None:  # legacy format: a storage that is part of another
        _key, offset, count = view[0]
        offset, count = _integers([offset, count])
    return Storage(
        _DTYPES.get(of.name) if of.module in ("torch", "torch.storage", "torch.cuda") else None, key, count, offset
    )


def load(file: IO[bytes], left_out: set[str] | None = None) -> Any:
    """Read one pickle at the position of a file as plain data, `Tensor`, `Opaque` and `Name`, and stop after it."""
    # Dictionaries of all kinds become dicts, and sets lists. Unknown classes that the pickle calls are added to
    # `left_out`.
    return _Machine(_persistent, left_out).run(file)


def load_legacy(file: IO[bytes], left_out: set[str] | None = None) -> tuple[Any, list[tuple[str, str | None]]]:
    """Return the object in a file from before PyTorch 1.6, and the key and type of each storage in order."""
    # The file stops where the storages begin.
    if load(file) != 0x1950A86A20F9469CFC6C:
        raise Refused("is a Python pickle, but not one that torch.save wrote: it is not opened.")
    version, system = load(file), load(file)
    if version != 1001:
        raise ValueError("the version of the format is not 1001")
    if isinstance(system, dict) and system.get("little_endian", True) is not True:
        raise Refused("was written on a big-endian machine, which is not supported.")
    types: dict[str, str | None] = {}

    def persistent(identifier: Any) -> Any:
        value = _persistent(identifier)
        if isinstance(value, Storage):
            types[value.key] = value.dtype
        return value

    saved = _Machine(persistent, left_out).run(file)
    keys = load(file)
    if not isinstance(keys, list) or any(not isinstance(key, str) or key not in types for key in keys):
        raise ValueError("its list of storages is malformed")
    return saved, [(key, types[key]) for key in keys]


# Where training scripts keep the weights, the preferred first.
_PREFERRED = ("state_dict", "model", "module", "teacher", "target_encoder", "encoder", "net", "backbone", "student")


def state_dicts(saved: Any, left_out: Iterable[str] = ()) -> dict[str, dict[str, Tensor]]:
    """Return the dictionaries of tensors in a saved object, by their keys joined with dots (`""`: the object)."""
    # The preferred come first, the moving average of the weights before the weights; others keep their order.
    if isinstance(saved, Opaque) and saved.of.module.split(".")[0] == "__torch__":
        return {"": dict(_attributes(saved))}
    found: dict[str, dict[str, Tensor]] = {}
    modules: list[Opaque] = []
    _search(saved, (), found, modules, set())
    if not found and modules:
        raise Refused(
            f"holds a whole Python object of the class {modules[0].of}, which only its own code can open. Open it "
            "there, and save its state dict instead: torch.save(model.state_dict(), path)."
        )
    if not found and left_out:
        raise _refuse(min(left_out))
    if not found:
        raise Refused("holds no state dict: it has no dictionary of names and tensors.")
    keys = sorted(found, key=rank)
    # Where timm's scripts keep the moving average of the weights, which timm takes instead of the weights.
    twin = twin_of(keys[0], found) if keys[0] in ("state_dict", "model") else None
    if twin in ("state_dict_ema", "model_ema"):
        keys = [twin, *(key for key in keys if key != twin)]
    return {key: found[key] for key in keys}


def twin_of(key: str, found: Mapping[str, Iterable[str]]) -> str | None:
    """Return the key of another state dict with the same names, as of a teacher and its student, or `None`."""

    def names(key: str) -> set[str]:
        return {name.removeprefix("module.") for name in found[key]}

    return next((other for other in found if other != key and names(other) == names(key)), None)


def rank(key: str) -> tuple[float, ...]:
    """Return the rank of a key in the order of preference; the lowest is preferred."""
    parts = key.split(".") if key else ()
    places = [_PREFERRED.index(p) if p in _PREFERRED else len(_PREFERRED) for p in parts]
    return (places[0] if places else len(_PREFERRED) - 0.5, *places[1:])


def _search(value: Any, path: tuple[str, ...], found: dict[Any, Any], modules: list[Any], seen: set[int]) -> None:
    if isinstance(value, Opaque) and isinstance(value.state, dict) and "_parameters" in value.state:
        modules.append(value)
    if not isinstance(value, dict) or id(value) in seen or len(path) > 4:
        return
    seen.add(id(value))
    tensors = {name: v for name, v in value.items() if isinstance(name, str) and isinstance(v, Tensor)}
    if tensors:
        found[".".join(path)] = tensors
    for name, inner in value.items():
        if isinstance(name, str) and len(name) <= LIMIT_NAME:
            _search(inner, (*path, name), found, modules, seen)


def _attributes(module: Opaque) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a TorchScript module and of the modules inside it, by their paths."""
    waiting: list[tuple[tuple[str, ...], Any]] = [((), module)]
    for _ in range(LIMIT_TENSORS):
        if not waiting:
            return
        path, value = waiting.pop()
        if isinstance(value, Tensor):
            yield ".".join(path), value
        if isinstance(value, Opaque) and isinstance(value.state, dict):
            names = [n for n in value.state if isinstance(n, str)]
            if len(path) >= LIMIT_DEPTH or any(len(n) > LIMIT_NAME for n in names):
                raise ValueError("its modules are nested too deeply")
            waiting.extend(((*path, n), value.state[n]) for n in reversed(names))
    raise ValueError("it has too many tensors")
