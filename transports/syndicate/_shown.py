"""The value that an observer is shown, in the form that a peer gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import attrs

from ...dataspace import Observe, PatternError, TopicFilter
from ._patterns import pattern_to_wire
from ._preserves import Embedded, Record, Symbol, Value
from ._values import Decoded, Encoded
from ._vocabulary import Vocabulary


def shown_value(value: Any, vocabulary: Vocabulary) -> Value:
    """Return the value in the types of the `preserves` library; never raises.

    An instance of a class that is not in the vocabulary is a record labelled with the class's name;
    a value without a form on the wire is `<opaque "...">`, with its Python `repr`. An `Observe`
    that a peer made is the record that it asserted.
    """
    if isinstance(value, (Encoded, Decoded)):
        return value.value()
    if isinstance(value, (bool, int, float, str, bytes, Symbol, Embedded)):
        return value
    if isinstance(value, (tuple, list)):
        parts = cast("tuple[object, ...]", value)
        return tuple([shown_value(part, vocabulary) for part in parts])
    if isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value).items()
        return {shown_value(k, vocabulary): shown_value(v, vocabulary) for k, v in pairs}
    if isinstance(value, Observe):
        return Record(Symbol("Observe"), (_pattern_value(value, vocabulary),))
    cls: Any = value.__class__
    if attrs.has(cls):
        label = vocabulary.label(cls) or cls.__name__
        fields = [shown_value(getattr(value, f), vocabulary) for f in vocabulary.fields(cls)]
        return Record(Symbol(label), fields)
    return Record(Symbol("opaque"), (repr(value),))


def _pattern_value(observe: Observe, vocabulary: Vocabulary) -> Value:
    pattern = observe.pattern
    if isinstance(pattern, TopicFilter):
        return Record(Symbol("topic-filter"), (pattern.text,))
    try:
        return pattern_to_wire(pattern, vocabulary)
    except PatternError:
        return Record(Symbol("opaque"), (repr(pattern),))
