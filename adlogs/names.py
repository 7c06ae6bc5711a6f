"""The words of the simulated world: categories, languages, brands. Several are not ASCII, as real logs are."""

SCENARIOS = ("standard", "shopping")
OBJECTIVES = ("impression", "click", "conversion")

STANDARD_CATEGORIES = (
    "travel", "finance", "games", "streaming", "automobile", "insurance", "telecom", "education",
    "food delivery", "dating", "real estate", "jobs", "news", "santé", "bücher", "旅行",
)  # fmt: skip
SHOPPING_CATEGORIES = (
    "shoes", "dresses", "phones", "laptops", "toys", "kitchen", "garden", "jewellery",
    "skin care", "sport", "groceries", "möbel", "élégance", "化妆品", "електроника", "おもちゃ",
)  # fmt: skip
CATEGORIES = STANDARD_CATEGORIES + SHOPPING_CATEGORIES

COUNTRIES = ("US", "DE", "FR", "GB", "ES", "PL", "JP", "CN", "UA", "CH")
COUNTRY_WEIGHTS = (0.24, 0.14, 0.11, 0.11, 0.09, 0.07, 0.08, 0.07, 0.05, 0.04)
COUNTRY_UTC_OFFSETS = (-6, 1, 1, 0, 1, 1, 9, 8, 2, 1)  # hours
LANGUAGES = ("English", "Deutsch", "français", "español", "polski", "日本語", "中文", "українська")
COUNTRY_LANGUAGES = (0, 1, 2, 0, 3, 4, 5, 6, 7, 1)  # the main language of each country

DEVICES = ("phone", "tablet", "desktop", "tv")
DEVICE_WEIGHTS = (0.62, 0.08, 0.24, 0.06)
FORMATS = ("image", "video", "carousel", "text")
AGE_BANDS = ("18-24", "25-34", "35-44", "45-54", "55+")
SURFACES = ("feed", "stories", "search", "shop", "product page")
SCENARIO_SURFACES = ((0, 1, 2), (2, 3, 4))  # surfaces on which a request of each scenario can arise
ADVERTISER_SIZES = ("small", "medium", "large")

BRAND_STEMS = (
    "Nordwind", "Café Zürich", "Łódka", "北京之星", "Señorita", "Blåbär", "Ardent", "Quill", "Ōkami", "Verve",
    "Château Bleu", "Kestrel", "Мрія", "Pine & Co", "Über", "Lumen", "Solstice", "Ítaca", "Sakura", "Fjord",
)  # fmt: skip


def user_id(index: int) -> str:
    """Id of a simulated user."""
    return f"u-{index:06d}"


def ad_id(index: int) -> str:
    """Id of a simulated ad; about one in a hundred is not ASCII.

    Example:
        >>> ad_id(5), ad_id(97)
        ('ad-000005', 'ad-ñ-000097')
    """
    return f"ad-ñ-{index:06d}" if index % 97 == 0 else f"ad-{index:06d}"


def advertiser_id(index: int) -> str:
    """Id of a simulated advertiser."""
    return f"adv-{index:04d}"


def brand(index: int) -> str:
    """A brand name, distinct for each index."""
    stem = BRAND_STEMS[index % len(BRAND_STEMS)]
    generation = index // len(BRAND_STEMS)
    return stem if generation == 0 else f"{stem} {generation + 1}"
