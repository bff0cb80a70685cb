"""Word pools of the demo corpus: invented names and values. What `train` and `dev` hold is disjoint, numbers aside."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Pools:
    """The words one split may use."""

    women: tuple[str, ...]
    men: tuple[str, ...]
    surname_starts: tuple[str, ...]
    surname_ends: tuple[str, ...]
    place_starts: tuple[str, ...]
    place_ends: tuple[str, ...]
    adjectives: tuple[str, ...]
    nouns: tuple[str, ...]
    ventures: tuple[str, ...]
    """Second words of company names."""
    arts: tuple[str, ...]
    """What festivals are named for."""
    trades: tuple[str, ...]
    materials: tuple[str, ...]
    goods: tuple[str, ...]
    reasons: tuple[str, ...]
    """Clauses after 'because' that can stop, delay or move nearly anything."""
    contrasts: tuple[str, ...]
    """Openings of a sentence that sets a second entity beside the first."""
    hearsay: tuple[str, ...]
    """Openings that any statement can follow."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(" ".join(phrase.split()) for phrase in text.split(","))


TRAIN = Pools(
    women=_words("Anna Clara Edith Greta Helen Irene Judith Martha Nora Paula Rosa Sylvia Teresa Vera Agnes Cecily"),
    men=_words("Albert Bruno Carl Daniel Edgar Felix George Henry Isaac Jacob Leon Martin Oscar Peter Rupert Simon"),
    surname_starts=_words("Bran Car Den Fal Gor Hal Kem Lan Mor Nol Pas Ran Sel Tam Var Wes Thol Brin"),
    surname_ends=_words("drick lund mond sley tano vess croft rell"),
    place_starts=_words(
        "Aldra Brenna Corvo Delma Eska Ferro Galta Hesta Ilma Jorva Kelda Lorma Morda Nerva Olda Pella"
    ),
    place_ends=_words("bury ford ham mere stead wick burg port"),
    adjectives=_words("Silver Broken Quiet Hidden Crimson Frozen Wandering Hollow Burning Patient Crooked Midnight"),
    nouns=_words("Lantern Orchard Sparrow Mirror Harbour Staircase Compass Garden Kettle Anchor Raven Pilgrim"),
    ventures=_words("Motors Textiles Foundries Instruments Shipping Mills"),
    arts=_words("Music Harvest Poetry Cheese"),
    trades=_phrases(
        "surgeon, carpenter, botanist, lawyer, baker, engraver, astronomer, tailor, architect, printer, librarian,"
        "geologist, actor, blacksmith"
    ),
    materials=_phrases(
        "red sandstone, oak, grey granite, cast iron, yellow brick, white marble, pine, black basalt, chalk, larch,"
        "rough fieldstone, slate"
    ),
    goods=_phrases(
        "cotton cloth, glass bottles, bicycles, salted fish, clocks, leather gloves, copper wire, candles, tobacco,"
        "woollen blankets, gunpowder, porcelain plates, olive oil, mirrors"
    ),
    reasons=_phrases(
        "the money had run out, a flood had washed away the road, fever had broken out in the district,"
        "the winter was unusually harsh, a fire had destroyed the archive, the dockers were on strike,"
        "thieves had taken most of the equipment, food was running short, the old king had died,"
        "a landslide had buried the only path, the bank refused to lend any more, two of the sponsors had quarrelled,"
        "several important letters had gone astray, an official had mislaid the permits,"
        "a famine had begun in the south, nobody would pay the bills"
    ),
    contrasts=("By contrast,", "In contrast,"),
    hearsay=("As far as anyone knows,", "Records show that", "It is often mentioned that", "According to a guidebook,"),
)

DEV = Pools(
    women=_words("Beatrice Dora Emma Flora Gwen Ida Julia Laura Mabel Olga Ruth Stella"),
    men=_words("Arthur Basil Conrad David Ernest Frank Hugo Ivan Lewis Otto Paul Victor"),
    surname_starts=_words("Ard Bry Cob Dor Eld Fen Gil Hob Jes Kir Lep Mun Ord Pry Quil Rud"),
    surname_ends=_words("bert gan kin low rane tosh"),
    place_starts=_words(
        "Ambri Benli Cresti Dravi Endri Farni Grendi Harli Ilvi Jemmi Kosti Lundi Melvi Norri Orli Penni"
    ),
    place_ends=_words("dale gate combe holm haven thorpe minster wold"),
    adjectives=_words("Golden Forgotten Empty Gilded Distant Velvet Restless Bitter Scarlet Sleeping"),
    nouns=_words("Feather Cathedral Violin Shepherd Window Meadow Ladder Falcon Thistle Envelope"),
    ventures=_words("Chemicals Engines Breweries Optics Railways"),
    arts=_words("Theatre Dance Kite"),
    trades=_phrases(
        "nurse, stonemason, chemist, journalist, watchmaker, sailor, schoolteacher, weaver, mathematician, gardener,"
        "accountant, translator"
    ),
    materials=_phrases(
        "limestone, concrete, green serpentine, cedar wood, flint, cobblestone, beech, brown clay, tuff, chestnut"
    ),
    goods=_phrases(
        "umbrellas, silk ribbons, tin toys, soap, pianos, felt hats, sugar, spectacles, rope, wax crayons, bells, honey"
    ),
    reasons=_phrases(
        "an epidemic had reached the coast, the treasurer had vanished with the savings,"
        "heavy rain had soaked everything, a rival had spread false rumours, a dispute over pay had turned violent,"
        "several ships had sunk in a gale, war threatened on the border, the chief engineer fell seriously ill,"
        "taxes had been doubled overnight, an avalanche closed the pass, coal had become scarce,"
        "a judge ordered an inquiry"
    ),
    contrasts=("By comparison,", "Meanwhile,"),
    hearsay=("By all accounts,", "Most sources agree that", "It is no secret that", "As experts point out,"),
)

POOLS = {"train": TRAIN, "dev": DEV}
