"""Arguments and results as JSON text, by pydantic from the handler's signature.

What an annotation names comes back as that: dataclasses, models, datetimes, UUIDs, Decimals, bytes, enums. Where
the signature says nothing (no annotation, `Any`, a union), the encoded text is decoded once at enqueue and compared,
so that a value which JSON would change silently is refused there and not discovered at run time. Allowed changes,
in such places: a tuple comes back as a list, an int key of a dict as its text. NUL becomes U+FFFD everywhere.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError, create_model
from pydantic_core import PydanticSerializationError

from fencepost.errors import ArgumentsError, ConfigurationError, DecodingError, EncodingError

__all__ = ["MAX_PAYLOAD_BYTES", "ArgumentsCodec", "ResultCodec", "clean_text"]

MAX_PAYLOAD_BYTES = 6 * 1024 * 1024  # escaped to twice its size it still fits MariaDB's default packet of 16 MiB

_CONFIG = ConfigDict(ser_json_inf_nan="constants", ser_json_bytes="base64", val_json_bytes="base64")
_CLOSED_TYPES = (int, str, float, bool, bytes, type(None), datetime, date, time, timedelta, Decimal, UUID)
_CLOSED_CONTAINERS = (list, dict, set, frozenset, tuple)
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED_NUL = re.compile(r"\\(\\|u0000)")


def clean_text(text: str) -> str:
    """Text that every database stores unchanged: NUL and lone surrogates become U+FFFD."""
    if "\0" in text:
        text = text.replace("\0", "\ufffd")
    return _SURROGATE.sub("\ufffd", text)


class ArgumentsCodec:
    """Encodes and decodes the arguments of one handler.

    Args:
        function: the handler.
        context_type: the annotation of parameters that the worker fills in.
        max_bytes: the largest encoded size.

    Raises:
        ConfigurationError: a signature whose arguments cannot be stored by name.
    """

    def __init__(self, function: Callable[..., Any], context_type: type, *, max_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        self._name = getattr(function, "__qualname__", repr(function))
        self._max_bytes = max_bytes
        hints = _hints(function)
        self.context_parameter: str | None = None
        self._parameters: list[str] = []
        fields: dict[str, Any] = {}
        extra, is_open = "forbid", False
        for parameter in inspect.signature(function).parameters.values():
            annotation = hints.get(parameter.name, Any)
            if _mentions(annotation, context_type):
                self.context_parameter = parameter.name
                continue
            if parameter.kind is parameter.VAR_KEYWORD:
                extra, is_open = "allow", True
                continue
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
                raise ConfigurationError(
                    f"{self._name} takes {parameter}, but a job's arguments are stored by name. "
                    f"Make it an ordinary parameter."
                )
            default = ... if parameter.default is parameter.empty else None
            # The alias keeps a parameter named `schema` or `copy` from clashing with pydantic's own names.
            fields[f"f{len(fields)}"] = (annotation, Field(default, alias=parameter.name))
            self._parameters.append(parameter.name)
            is_open = is_open or not _is_closed(annotation)
        config = ConfigDict(**_CONFIG, extra=extra)  # type: ignore[typeddict-item]
        try:
            self._model = create_model("Arguments", __config__=config, **fields)
        except (PydanticUserError, TypeError) as error:
            raise ConfigurationError(f"The parameters of {self._name} cannot be encoded: {error}") from error
        self._names = dict(zip(fields, self._parameters, strict=True))
        self._validator = self._model.__pydantic_validator__
        self._serializer = self._model.__pydantic_serializer__
        self._is_open = is_open

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Check arguments against the signature and encode them.

        Raises:
            ArgumentsError: missing, unknown or wrongly typed ones, each named.
            EncodingError: a value that would not come back equal, or too large.
        """
        return self.encode_checked(args, kwargs)[0]

    def encode_checked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, BaseModel]:
        """What `encode` returns, and the checked arguments for `given`. The same errors."""
        if args:
            kwargs = self._by_name(args, kwargs)
        try:
            checked = self._validator.validate_python(kwargs)
        except ValidationError as error:
            raise ArgumentsError(f"{self._name}: {_problems(error)}") from None
        except RecursionError:
            raise EncodingError(f"{self._name}: the arguments are nested too deeply") from None
        try:
            encoded = self._serializer.to_json(checked, by_alias=True, exclude_unset=True)
        except (PydanticSerializationError, RecursionError, UnicodeError) as error:
            raise self._refusal(kwargs, error) from None
        text = encoded.decode()
        if "NaN" in text or "Infinity" in text:
            _refuse_constants(text, kwargs, self._name)
        if self._is_open:
            self._check_round_trip(checked, text)
        if len(encoded) > self._max_bytes:
            raise EncodingError(_too_large(f"{self._name}: the arguments", len(encoded), self._max_bytes))
        return _without_nul(text), checked

    def given(self, checked: BaseModel) -> dict[str, Any]:
        """Checked arguments by name; those that were not given stay away."""
        return self._given(checked)

    def decode(self, text: str) -> dict[str, Any]:
        """The arguments by name. What was not given stays away, so that the handler's own default applies.

        Raises:
            DecodingError: the text does not fit the signature (any more).
        """
        try:
            model = self._validator.validate_json(text)
        except ValidationError as error:
            raise DecodingError(f"The arguments do not fit {self._name}: {_problems(error)}") from None
        return self._given(model)

    def _given(self, model: BaseModel) -> dict[str, Any]:
        given = model.__pydantic_fields_set__
        values = {self._names[field]: value for field, value in model.__dict__.items() if field in given}
        if model.model_extra:
            values |= model.model_extra
        return values

    def _by_name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if len(args) > len(self._parameters):
            raise ArgumentsError(
                f"{self._name} takes {len(self._parameters)} arguments ({', '.join(self._parameters)}), "
                f"but {len(args)} were given"
            )
        positional = dict(zip(self._parameters, args, strict=False))
        twice = positional.keys() & kwargs.keys()
        if twice:
            raise ArgumentsError(f"{self._name}: {', '.join(sorted(twice))} given twice")
        return positional | kwargs

    def _check_round_trip(self, checked: BaseModel, text: str) -> None:
        try:
            back = self._validator.validate_json(text)
        except (ValidationError, RecursionError) as error:
            why = _problems(error) if isinstance(error, ValidationError) else "nested too deeply"
            raise EncodingError(f"{self._name}: the arguments cannot be read back: {why}") from None
        given, returned = self._given(checked), self._given(back)
        for name, value in given.items():
            difference = _difference(value, returned.get(name), name)
            if difference is not None:
                raise EncodingError(f"{self._name}: {difference}")

    def _refusal(self, arguments: Mapping[str, Any], error: Exception) -> EncodingError:
        for name, value in arguments.items():
            path = _find(value, name, lambda leaf: isinstance(leaf, str) and _SURROGATE.search(leaf) is not None)
            if path is not None:
                return EncodingError(
                    f"{self._name}: {path} holds a lone surrogate, which is no Unicode text and cannot be stored"
                )
        suspects = [name for name, value in arguments.items() if not _is_encodable(value)]
        where = ", ".join(suspects) or "the arguments"
        reason = str(error).removeprefix("Error serializing to JSON: ")
        if isinstance(error, RecursionError) or "depth" in reason:
            reason = "nested too deeply"
        return EncodingError(f"{self._name}: {where} cannot be encoded: {reason}")


class ResultCodec:
    """Encodes and decodes results.

    Args:
        annotation: their type; `Any`: plain JSON values.
        name: whose they are, for messages.
        max_bytes: the largest encoded size.
    """

    def __init__(self, annotation: Any, name: str, *, max_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        self._name = name
        self._max_bytes = max_bytes
        self._adapter = _adapter(annotation)
        self._is_closed = _is_closed(annotation)

    @classmethod
    def of(cls, function: Callable[..., Any], *, max_bytes: int = MAX_PAYLOAD_BYTES) -> ResultCodec:
        """The codec of what a function is annotated to return.

        Raises:
            ConfigurationError: an annotation that cannot be resolved.
        """
        annotation = _hints(function).get("return", Any)
        return cls(annotation, getattr(function, "__qualname__", repr(function)), max_bytes=max_bytes)

    def encode(self, value: object) -> str | None:
        """JSON text; None for None.

        Raises:
            EncodingError: it cannot be stored so that it comes back equal, or is too large.
        """
        if value is None:
            return None
        try:
            encoded = self._adapter.dump_json(value, warnings="error")
        except (PydanticSerializationError, RecursionError, UnicodeError) as error:
            raise EncodingError(
                f"{self._name} returned a {type(value).__name__} that cannot be stored: {error}. "
                "Annotate what it returns, return plain data, or set keep_result=False."
            ) from None
        text = encoded.decode()
        if "NaN" in text or "Infinity" in text:
            _refuse_constants(text, {"result": value}, self._name)
        if not self._is_closed:
            difference = _difference(value, self.decode(text), "the result")
            if difference is not None:
                raise EncodingError(f"{self._name}: {difference}")
        if len(encoded) > self._max_bytes:
            raise EncodingError(_too_large(f"{self._name}: the result", len(encoded), self._max_bytes))
        return _without_nul(text)

    def decode(self, text: str | None) -> Any:
        """The value that `encode` was given.

        Raises:
            DecodingError: the text is not of the declared type.
        """
        if text is None:
            return None
        try:
            return self._adapter.validate_json(text)
        except ValidationError as error:
            raise DecodingError(f"The stored result does not fit {self._name}: {_problems(error)}") from None


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ConfigurationError(
            f"An annotation of {getattr(function, '__qualname__', function)} cannot be resolved: {error}. Types in a "
            "handler's signature must be importable from its module (not only under TYPE_CHECKING, nor local)."
        ) from error


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(annotation, config=_CONFIG)
    except PydanticUserError:  # models and dataclasses bring their own configuration
        return TypeAdapter(annotation)


def _mentions(annotation: Any, wanted: type) -> bool:
    return annotation is wanted or wanted in typing.get_args(annotation)


def _is_closed(annotation: Any) -> bool:
    """Whether every value of the type comes back from JSON as itself, by the type alone."""
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation in _CLOSED_TYPES or issubclass(annotation, Enum)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return False
    if origin in (typing.Union, types.UnionType):
        rest = [argument for argument in arguments if argument is not type(None)]
        return len(rest) == 1 and _is_closed(rest[0])
    if origin in _CLOSED_CONTAINERS:
        return all(argument is ... or _is_closed(argument) for argument in arguments)
    return False


def _problems(error: ValidationError) -> str:
    """Every problem of a validation, with the parameter's name first."""
    parts = []
    for problem in error.errors(include_url=False, include_context=False):
        path = ".".join(str(part) for part in problem["loc"]) or "arguments"
        match problem["type"]:
            case "missing":
                parts.append(f"{path} is missing")
            case "extra_forbidden":
                parts.append(f"{path} is not a parameter")
            case _:
                parts.append(f"{path}: {problem['msg']} (got {_short(problem['input'])})")
    return "; ".join(parts)


def _short(value: object) -> str:
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - whatever a stranger's __repr__ raises, the message goes on
        text = f"<{type(value).__name__} whose repr failed: {type(error).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _difference(value: Any, back: Any, path: str) -> str | None:
    """Where a value and what came back of it differ, in words; None if they are equal as documented."""
    if isinstance(value, (list, tuple)) and isinstance(back, (list, tuple)) and len(value) == len(back):
        pairs = enumerate(zip(value, back, strict=True))
        return next((d for i, (a, b) in pairs if (d := _difference(a, b, f"{path}[{i}]")) is not None), None)
    if isinstance(value, dict) and isinstance(back, dict) and len(value) == len(back):
        for key, item in value.items():
            stored = str(key) if type(key) is int and key not in back else key
            if stored not in back:
                return f"{path} has the key {_short(key)}, which JSON cannot carry"
            found = _difference(item, back[stored], f"{path}[{key!r}]")
            if found is not None:
                return found
        return None
    if isinstance(value, BaseModel) and type(value) is type(back):
        return _difference(value.__dict__, back.__dict__, path)
    if is_dataclass(value) and not isinstance(value, type) and type(value) is type(back):
        members = [field.name for field in dataclass_fields(value)]
        return _difference(
            {name: getattr(value, name) for name in members}, {name: getattr(back, name) for name in members}, path
        )
    if type(value) is type(back) or isinstance(value, (str, int, float)):
        if value == back:
            return None
        return f"{path} is {_short(value)} and would come back as {_short(back)}"
    return (
        f"{path} is a {type(value).__name__} and would come back as a {type(back).__name__}. "
        f"Annotate its type, so that it comes back as what it is."
    )


def _find(value: Any, path: str, wanted: Callable[[Any], bool], depth: int = 0) -> str | None:
    """The path of the first leaf (or key) that is wanted."""
    if wanted(value):
        return path
    if depth > 100:
        return None
    if isinstance(value, dict):
        for key, item in value.items():
            if wanted(key):
                return f"{path} (a key)"
            found = _find(item, f"{path}[{_short(key)}]", wanted, depth + 1)
            if found is not None:
                return found
    elif isinstance(value, (list, tuple, set, frozenset)):
        for index, item in enumerate(value):
            found = _find(item, f"{path}[{index}]", wanted, depth + 1)
            if found is not None:
                return found
    return None


def _is_encodable(value: Any) -> bool:
    try:
        TypeAdapter(Any).dump_json(value)
    except (PydanticSerializationError, RecursionError, UnicodeError):
        return False
    return True


def _refuse_constants(text: str, values: Mapping[str, Any], name: str) -> None:
    """NaN and the infinities are no JSON. (The letters alone may stand in a string.)"""

    def refuse(constant: str) -> None:
        def is_constant(leaf: Any) -> bool:
            return isinstance(leaf, (float, Decimal)) and not math.isfinite(leaf)

        paths = (_find(value, key, is_constant) for key, value in values.items())
        path = next((path for path in paths if path is not None), "a value")
        raise EncodingError(f"{name}: {path} is {constant}, which JSON cannot carry. Pass None or a string instead.")

    json.loads(text, parse_constant=refuse)


def _without_nul(text: str) -> str:
    # A NUL stands in JSON as \u0000; an escaped backslash before it makes it the six letters instead.
    if "\\u0000" not in text:
        return text
    return _ESCAPED_NUL.sub(lambda match: match[0] if match[1] == "\\" else "\ufffd", text)


def _too_large(what: str, size: int, limit: int) -> str:
    return (
        f"{what} are {size:,} bytes encoded; the limit is {limit:,}. Store the data elsewhere and pass a reference, "
        "or raise max_payload_bytes (MariaDB and MySQL: below half of max_allowed_packet)."
    )
