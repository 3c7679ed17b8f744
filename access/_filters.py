"""Relations of two topic filters: MQTT's wildcards on both sides (section 4.7)."""


def overlap(first: str, second: str) -> bool:
    """Whether some topic matches both of two filters."""
    if first.startswith("$") != second.startswith("$") and (first[0] in "+#" or second[0] in "+#"):
        return False  # [MQTT-4.7.2-1]
    one, other = first.split("/"), second.split("/")
    for place in range(min(len(one), len(other))):
        a, b = one[place], other[place]
        if a == "#" or b == "#":
            return True
        if a != b and a != "+" and b != "+":
            return False
    longer = one if len(one) > len(other) else other
    short = min(len(one), len(other))
    # `a/#` matches `a`, too (section 4.7.1.2); but `/#` no topic of one level, as that is empty.
    rest = len(longer) == short + 1 and longer[short] == "#"
    return len(one) == len(other) or (rest and longer[:-1] != [""])


def covers(wider: str, narrower: str) -> bool:
    """Whether each topic that matches the filter `narrower` matches `wider`."""
    if wider[0] in "+#" and narrower.startswith("$"):
        return False
    wide = wider.split("/")
    # A topic has one level at least.
    narrow = ["+", "#"] if narrower == "#" else narrower.split("/")
    for place, level in enumerate(wide):
        if level == "#":
            return True
        if place >= len(narrow):
            return False
        if narrow[place] == "#" or (level != "+" and level != narrow[place]):
            return False
    return len(wide) == len(narrow)
