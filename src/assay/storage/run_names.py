"""Names of runs: easy to pronounce, type and distinguish."""

import secrets
from typing import Final

_QUALITIES: Final = (
    *("able", "amber", "bold", "brave", "brisk", "bright", "calm", "clear", "clever", "cosy"),
    *("crisp", "deft", "eager", "early", "fair", "fleet", "fond", "fresh", "gentle", "glad"),
    *("golden", "grand", "happy", "hardy", "honest", "keen", "kind", "lively", "lucid", "lucky"),
    *("mellow", "merry", "mild", "neat", "nimble", "noble", "patient", "plain", "plucky", "proud"),
    *("quick", "quiet", "rapid", "ready", "rosy", "sharp", "silent", "sleek", "smart", "snug"),
    *("solid", "spry", "steady", "stout", "sunny", "swift", "tidy", "trusty", "vivid", "warm"),
    *("wary", "wise", "witty", "zesty"),
)
_CREATURES: Final = (
    *("adder", "badger", "beaver", "bison", "bittern", "bream", "bunting", "carp", "cicada"),
    *("crane", "curlew", "dipper", "dove", "egret", "falcon", "ferret", "finch", "fox", "gecko"),
    *("gull", "hare", "hawk", "hedgehog", "heron", "hornet", "ibex", "ibis", "jackdaw", "jay"),
    *("kestrel", "kite", "lark", "lemur", "linnet", "lizard", "lynx", "magpie", "marmot", "marten"),
    *("merlin", "mole", "moth", "newt", "oriole", "osprey", "otter", "owl", "panda", "perch"),
    *("pika", "plover", "puffin", "quail", "raven", "robin", "seal", "shrew", "siskin", "sparrow"),
    *("stoat", "stork", "swan", "tapir", "tern", "thrush", "toad", "vole", "wren"),
)


def new_name() -> str:
    """Return a name like `brisk-otter-4f2a`, one of about 260 million."""
    quality, creature = secrets.choice(_QUALITIES), secrets.choice(_CREATURES)
    return f"{quality}-{creature}-{secrets.token_hex(2)}"
