"""What the simulated benchmark trains on and how: its features, and one configuration for every backbone."""

import msgspec

from contracts.schema import Feature, FeatureSchema
from heavy_ranker.config import BackboneName, HeavyConfig, SideGroups
from heavy_ranker.presets import small

LEARNED_BY_HEART = ("ad_id", "brand")
"""Identifiers that say nothing of the truth that other features do not."""

TOKENS: SideGroups = {
    "query": {
        "profile": ("profile",),
        "age": ("age_band",),
        "income": ("income_band",),
        "numbers": ("user_ctr", "activity"),
        "country": ("country",),
        "language": ("language",),
        "device": ("device", "surface"),
        "hour": ("hour",),
        "interests": ("interests",),
    },
    "ad": {
        "image": ("image",),
        "category": ("category",),
        "offer": ("scenario", "advertiser_size"),
        "topics": ("topics",),
        "format": ("format",),
        "language": ("ad_language",),
        "advertiser": ("advertiser_id",),
        "price": ("price",),
        "numbers": (
            "creative_score", "landing_score", "ad_age_days", "past_impressions", "past_ctr", "past_cvr",
            "advertiser_ctr",
        ),
    },
}  # fmt: skip


def judged_schema(shipped: FeatureSchema) -> FeatureSchema:
    """The shipped heavy schema of simulated logs without identifiers, and with how landing pages were judged.

    Without the latter a third of what makes a conversion likely is hidden, and no model could come within 2 % of it.
    """
    features = {name: _without(feature) for name, feature in shipped.features.items() if name not in LEARNED_BY_HEART}
    features["landing_score"] = Feature(side="ad", kind="dense", transform="standardize")
    used = {feature.table for feature in features.values()}
    used |= {field.table for feature in features.values() for field in (feature.fields or {}).values()}
    tables = {name: table for name, table in shipped.tables.items() if name in used}
    return msgspec.structs.replace(shipped, features=features, tables=tables)


def _without(feature: Feature) -> Feature:
    if not feature.fields:
        return feature
    kept = {name: field for name, field in feature.fields.items() if name not in LEARNED_BY_HEART}
    return msgspec.structs.replace(feature, fields=kept)


def tried(backbones: tuple[BackboneName, ...], *, num_layers: int, epochs: int = 1) -> HeavyConfig:
    """The configuration of one row of the table: equal sizes, examples and rates, whatever the backbone.

    No impression is learned by heart in one pass, and before each further one the tables are drawn anew. What interacts
    has a token of its own and meets each other token in products of scaled tokens; small batches make many steps of few
    examples.
    """
    base = small()
    return msgspec.structs.replace(
        base,
        model=msgspec.structs.replace(
            base.model,
            backbones=backbones,
            num_layers=num_layers,
            groups=TOKENS,
            product_heads=4,
            product_norm=True,
        ),
        loop=msgspec.structs.replace(
            base.loop, epochs=epochs, learning_rate=4e-3, weight_decay=0.05, checkpoint_every=1_000
        ),
        batch_size=256,
        validation_share=0.0,
    )
