"""The mapping between labels of records and Python classes, and the record of a publication.

A record whose label is in the vocabulary is an instance of its class to the dataspace: programs in
this process observe and publish classes, peers observe and publish records. All other records stay
records (`_values.py`).

An MQTT publication on `a/b` is `<publication ["a" "b"] payload qos retain>`: the levels of its
topic, so that patterns can look at each one; its payload as a byte string; its QoS as an integer;
RETAIN as a boolean. It is translated in both directions.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from ...dataspace import Publication
from .._errors import RemoteProtocolError
from ..mqtt.codec._topics import SERVER_TOPIC, TopicLimits, is_servers_own, topic_name_fault
from ._preserves import Symbol, Value, frozen, is_tuple
from ._values import PUBLICATION, Decoded, Encoded, WireValue, label_kind

_PUBLICATION_FIELDS = ("levels", "payload", "qos", "retain")


@attrs.frozen(slots=True)
class Vocabulary:
    """Maps labels of records to attrs classes; it always contains `Publication`."""

    classes: Mapping[str, type] = attrs.field(factory=dict[str, type])
    """The classes, by the name of the symbol that is the label."""
    topics: TopicLimits = attrs.field(factory=TopicLimits)
    """Limits on the length and depth of a publication's topic."""
    _by_kind: dict[object, type] = attrs.field(init=False, repr=False, eq=False)
    _labels: dict[type, str] = attrs.field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        labels = {cls: label for label, cls in self.classes.items()}
        labels[Publication] = PUBLICATION
        by_kind = {label_kind(Symbol(label)): cls for cls, label in labels.items()}
        object.__setattr__(self, "_labels", labels)
        object.__setattr__(self, "_by_kind", by_kind)

    def fields(self, cls: type) -> tuple[str, ...]:
        """Return the names of the fields of a class, in the record's order."""
        if cls is Publication:
            return _PUBLICATION_FIELDS
        return tuple([field.name for field in attrs.fields(cls)])

    def label(self, cls: type) -> str | None:
        """Return the label of the records of a class; None if it has none."""
        return self._labels.get(cls)

    def class_of(self, kind: object) -> type | None:
        """Return the class of records of this kind; None if there is none."""
        return self._by_kind.get(kind)

    def known(self, value: WireValue) -> object:
        """Return the instance of the class for a record, or the value unchanged.

        Raises:
            RemoteProtocolError: if the record does not fit its class.
        """
        if not isinstance(value, (Encoded, Decoded)):
            return value
        cls = self._by_kind.get(value.pattern_kind)
        if cls is None:
            return value
        fields: tuple[Value, ...] = frozen(value.value()).fields
        if cls is Publication:
            return self._publication(fields)
        try:
            return cls(*fields)
        except (TypeError, ValueError) as exc:
            label = self._labels[cls]
            msg = f"no {cls.__name__} can be made of a <{label} ...>: {exc}"
            raise RemoteProtocolError(msg) from None

    def _publication(self, fields: tuple[Value, ...]) -> Publication:
        if len(fields) != 4:
            raise _not_a_publication(f"it has {len(fields)} fields")
        levels, payload, qos, retain = fields
        if not is_tuple(levels) or not all(isinstance(level, str) for level in levels):
            raise _not_a_publication("its levels are not a sequence of strings")
        if any("/" in level for level in levels):
            raise _not_a_publication("there is a / within a level")
        topic = "/".join(levels)
        fault = topic_name_fault(topic) or self.topics.name_fault(topic)
        if fault is not None:
            raise _not_a_publication(fault)
        if is_servers_own(topic):
            raise _not_a_publication(f"topics under {SERVER_TOPIC}/ are the server's own")
        if not isinstance(payload, bytes):
            raise _not_a_publication("its payload is not a byte string")
        if type(qos) is not int or not 0 <= qos <= 2:
            raise _not_a_publication("its QoS is not 0, 1 or 2")
        if not isinstance(retain, bool):
            raise _not_a_publication("its RETAIN is not a boolean")
        return Publication(topic, payload, qos, retain)


def _not_a_publication(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"a <{PUBLICATION} ...> is refused: {why}; write "
        f'<{PUBLICATION} ["level" ...] #"payload" qos retain>'
    )
