"""Words, names and numbers to make questions of."""

from __future__ import annotations

import string
from collections.abc import Iterator
from random import Random

UPPER_CASE = string.ascii_uppercase
LOWER_CASE = string.ascii_lowercase


def listed(text: str) -> tuple[str, ...]:
    """Return the words of a text."""
    return tuple(text.split())


ADJECTIVES = listed(
    "amber ancient bold brave brief bright broad calm clean clear clever cold cool crisp curious "
    "dark deep distant dry eager early faint famous fast fierce flat fresh gentle giant glad "
    "golden grand great green grey happy hidden hollow humble icy idle jolly keen kind large late "
    "lively lonely loud lucky mellow mild misty modest narrow neat noble odd old pale patient "
    "plain polite proud quick quiet rapid rare red rough round royal rusty sharp shiny short "
    "silent silver simple slow small smooth soft solid steady stormy strong sunny swift tall tame "
    "tender thin tidy tiny vivid warm white wide wild wise young"
)
NOUNS = listed(
    "acorn anchor apple arrow badger barn basin beach bell birch bird boat bottle branch bridge "
    "brook bucket cabin candle canyon castle cave cedar chest cliff cloud coast comet coral cove "
    "crane creek crown desert door eagle ember falcon farm fern field finch fjord flame forest "
    "fountain fox garden gate glacier grove harbor hawk hill horse island jungle kettle lake "
    "lantern leaf lily lion maple marble meadow mill mirror moon moss mountain oak ocean olive "
    "orchard otter owl palm path pearl pebble pine planet pond prairie rabbit raven reef river "
    "robin rose saddle sail salmon seal shell shore sparrow spring star stone storm stream summit "
    "swan temple thorn tiger tower trail tulip tunnel turtle valley violet walnut whale willow "
    "wolf"
)
# Two of these make one word, of which there are thousands: "riverstone".
SYLLABLE_NOUNS = listed(
    "apple arm bay bear bell bird boat book box brick brook bush cake cave chalk clay cloud coat "
    "corn dawn deer desk door drum duck dust elm fern field film fire fish flag flax foot fox "
    "frog frost gate glass gold grape grass hand hat hill honey iron jar key king kite lake lamp "
    "leaf lid mist moon moss nest oak paint paper pine plum pond queen rain reed river road rock "
    "roof rope rose salt sand seed ship silk snow soap star stone storm sun table tent tree vase "
    "vine wall wheat wind wing wolf wood yard"
)


def names(random: Random, count: int) -> list[str]:
    """Return so many different names like "amber-falcon", at most 10,000."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[f"{random.choice(ADJECTIVES)}-{random.choice(NOUNS)}"] = None
    return list(found)


def numbers(random: Random, count: int, digits: int = 6) -> list[str]:
    """Return so many different numbers of so many digits."""
    least = 10 ** (digits - 1)
    return [str(number) for number in random.sample(range(least, 10 * least), count)]


def padded_numbers(random: Random, count: int, digits: int) -> list[str]:
    """Return so many different numbers of so many digits, with zeros in front."""
    return [f"{number:0{digits}}" for number in random.sample(range(10**digits), count)]


def compounds(random: Random) -> list[str]:
    """Return all words of two nouns, shuffled; none is part of another."""
    words = [a + b for a in SYLLABLE_NOUNS for b in SYLLABLE_NOUNS if a != b]
    random.shuffle(words)
    return words


def letters(random: Random, alphabet: str, length: int) -> Iterator[str]:
    """Yield different strings of so many letters, without end."""
    seen: set[str] = set()
    while True:
        word = "".join(random.choices(alphabet, k=length))
        if word not in seen:
            seen.add(word)
            yield word
