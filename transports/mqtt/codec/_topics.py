"""Checks of topic names and topic filters (MQTT 3.1.1, section 4.7).

Rules:

1. The checks return descriptions of faults and raise nothing: a bad topic is a
   `RemoteProtocolError` if a peer sent it, and a `LocalProtocolError` if this side was about to.
2. The rules of the specification (`topic_name_fault`, `topic_filter_fault`) are separate from the
   limits of this process (`TopicLimits`): the first end a connection, the second may also be
   answered with a SUBACK of 0x80.
3. Nothing is normalised [MQTT-4.7.3-4].
"""

import attrs

#: The longest UTF-8 string that the wire format can carry [MQTT-4.7.3-3].
MAX_STRING_BYTES = 65_535

#: The topic of the server's own publications. Peers cannot publish to it, or below it.
SERVER_TOPIC = "$SYS"

#: The prefix of the filter of a shared subscription (MQTT 5, section 4.8.2).
SHARED_PREFIX = "$share/"


def is_servers_own(topic: str) -> bool:
    """Whether only the server may publish to a topic."""
    return topic.startswith(SERVER_TOPIC) and topic[len(SERVER_TOPIC) :][:1] in ("", "/")


def topic_name_fault(topic: str) -> str | None:
    """Describe the fault of a topic name; None: it is legal."""
    if not topic:
        return "a topic name must have at least one character [MQTT-4.7.3-1]"
    if "+" in topic or "#" in topic:
        return (
            f"topic name {shown(topic)} contains a wildcard; publish to one topic without "
            "'+' and '#' [MQTT-3.3.2-2]"
        )
    if "\0" in topic:
        return f"topic name {shown(topic)} contains U+0000 [MQTT-4.7.3-2]"
    return None


def topic_filter_fault(topic_filter: str) -> str | None:
    """Describe the fault of a topic filter; None: it is legal."""
    if not topic_filter:
        return "a topic filter must have at least one character [MQTT-4.7.3-1]"
    if "\0" in topic_filter:
        return f"topic filter {shown(topic_filter)} contains U+0000 [MQTT-4.7.3-2]"
    hash_at = topic_filter.find("#")
    if hash_at >= 0:
        if hash_at != len(topic_filter) - 1:
            return (
                f"topic filter {shown(topic_filter)} has a '#' before its end; '#' must be the "
                "last character [MQTT-4.7.1-2]"
            )
        if hash_at > 0 and topic_filter[hash_at - 1] != "/":
            return (
                f"topic filter {shown(topic_filter)} has a '#' beside other characters; it must "
                "be a level of its own [MQTT-4.7.1-2]"
            )
    if "+" in topic_filter:
        for level in topic_filter.split("/"):
            if "+" in level and level != "+":
                return (
                    f"topic filter {shown(topic_filter)} has a '+' beside other characters; it "
                    "must be a level of its own [MQTT-4.7.1-3]"
                )
    return None


@attrs.frozen(slots=True)
class SharedFilter:
    """The parts of a shared subscription's filter (MQTT 5, section 4.8.2)."""

    group: str
    """The name of the group."""
    filter: str
    """The topic filter that its members share."""


def is_shared(topic_filter: str) -> bool:
    """Whether a filter is, or was meant to be, that of a shared subscription."""
    return topic_filter.startswith(SHARED_PREFIX)


def shared_fault(topic_filter: str) -> str | None:
    """Describe the fault of a shared subscription's filter; None: it is well-formed."""
    _, group, inner = (*topic_filter.split("/", 2), "")[:3]
    if not group:
        why = "names no group"
    elif "+" in group or "#" in group:
        why = f"has a wildcard in the name of the group, {shown(group)}"
    elif not inner:
        why = "has no topic filter behind the name of the group"
    else:
        return topic_filter_fault(inner)
    return (
        f"topic filter {shown(topic_filter)} {why}; a shared subscription is "
        "$share/GROUP/FILTER [MQTT-4.8.2-1][MQTT-4.8.2-2]"
    )


def shared_parts(topic_filter: str) -> SharedFilter | None:
    """Split the filter of a shared subscription; None if it is not one, or not well-formed."""
    if not is_shared(topic_filter) or shared_fault(topic_filter) is not None:
        return None
    _, group, inner = topic_filter.split("/", 2)
    return SharedFilter(group, inner)


def filter_of(topic_filter: str) -> str:
    """Return the topic filter of a subscription; if shared, the part behind the group's name.

    Authorisation has to check this filter.
    """
    shared = shared_parts(topic_filter)
    return topic_filter if shared is None else shared.filter


@attrs.frozen
class TopicLimits:
    """Limits of this process on the length and the depth of topics.

    Both limits exist because topics take memory: as keys of the route cache, as paths in the tree
    of subscriptions, as names of retained messages.

    Attributes:
        max_length: in bytes of UTF-8. The wire format allows 65,535; the public clouds allow 256
            (AWS IoT Core, Azure IoT Hub). 4,096, as long as a path on Linux (PATH_MAX), leaves
            room for everything seen in practice.
        max_levels: number of levels, the parts between slashes. 128, as EMQX's `max_topic_levels`;
            mosquitto has 200 built in.
    """

    max_length: int = 4_096
    max_levels: int = 128

    def filter_fault(self, topic_filter: str) -> str | None:
        """Describe the limit that a topic filter exceeds; None: it is within both.

        In a shared subscription they apply to the whole filter, with the name of the group.
        """
        return self.name_fault(topic_filter, "topic filter")

    def name_fault(self, topic: str, what: str = "topic name") -> str | None:
        """Describe the limit that a topic name exceeds; None: it is within both.

        The description calls it `what`.
        """
        # A character takes at most four bytes, so most topics need not be encoded to be measured.
        if len(topic) * 4 > self.max_length:
            length = len(topic.encode("utf-8", "surrogatepass"))
            if length > self.max_length:
                return (
                    f"{what} {shown(topic)} is {length} bytes long; at most {self.max_length} "
                    "are allowed here"
                )
        levels = topic.count("/") + 1
        if levels > self.max_levels:
            return (
                f"{what} {shown(topic)} has {levels} levels; at most {self.max_levels} are "
                "allowed here"
            )
        return None


def shown(topic: str) -> str:
    """Quote `topic` for a message, cut so that a peer cannot fill a log with one line."""
    return repr(topic) if len(topic) <= 80 else f"{topic[:77]!r}..."
