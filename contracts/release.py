"""Manifests of an index and of a release, and the check that two bundles and an index belong together."""

from typing import Any

import msgspec

from contracts.artifact import FileEntry
from contracts.bundle import BundleManifest
from contracts.errors import MismatchError
from contracts.names import MadeName


class UpdatePosition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far a log of updates was taken into account: its id, and the sequence number of the last update."""

    log: str
    seq: int


class IndexManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an index holds and what made it.

    ``two_tower`` and ``heavy`` are bundle versions. The heavy block depends on the heavy bundle only through its
    ad-side encoding, so another heavy bundle with the same ``heavy_ad_fingerprint`` may read it. ``objectives`` gives
    the meaning of the objective codes (position; -1 is none). ``catalog`` counts the rows read and why others were
    left out, ``statuses`` the ads by status, ``dropped`` and ``faults`` the ads that could not be embedded and why,
    ``coverage`` missing and out-of-vocabulary values by feature, for each model, ``shift`` how far they are from what
    the model was trained on, ``warnings`` what of it deserves a look. ``engine`` ran the pin tower; ``precision_loss``
    tells how far its probabilities were from exact ones on some ads of every batch; ``retrieval`` tells, by head, which
    kind of FAISS index was chosen, ``retrieval_recall`` what share of the best ads of saved requests it finds;
    ``updates`` which updates are merged into it; ``reencoded_from`` the index whose other blocks it shares. Times are
    ISO 8601, UTC.
    """

    version: MadeName
    scenario: str
    two_tower: str
    heavy: str | None = None
    ad_fingerprint: str
    heavy_ad_fingerprint: str | None = None
    tasks: list[str]
    objectives: list[str]
    head_dim: int
    precision: str
    num_ads: int
    catalog: dict[str, int]
    statuses: dict[str, int]
    dropped: dict[str, int]
    faults: dict[str, int]
    coverage: dict[str, dict]
    shift: dict[str, dict[str, Any]] = {}
    warnings: list[str] = []
    engine: str | None = None
    precision_loss: dict[str, float] = {}
    retrieval: dict[str, dict[str, Any]] = {}
    retrieval_recall: dict[str, float] = {}
    updates: UpdatePosition | None = None
    reencoded_from: str | None = None
    watermark: str
    files: dict[str, FileEntry]
    created_at: str


class Judgement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a release was judged before it was published: by a replay of saved requests.

    ``against`` is the release that served then, None before the first. ``limits`` were to be kept, null ones were not
    judged; ``failures`` tell what was beyond them, ``warnings`` what deserves a look, ``skipped`` what could not be
    judged, and ``override`` why the release was published all the same.
    """

    against: str | None = None
    limits: dict[str, float | None] = {}
    failures: list[str] = []
    warnings: list[str] = []
    skipped: list[str] = []
    override: str | None = None


class Release(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What serves together for one scenario. The fields hold versions; ``previous`` is the release before this one.

    ``number`` counts the releases of the scenario, whatever the clock says. ``metrics`` are those of the replay of
    saved requests, ``judgement`` how it was held against limits; None where nobody judged it.
    """

    release_id: MadeName
    scenario: MadeName
    number: int = 0
    two_tower: MadeName
    heavy: MadeName | None = None
    index: MadeName
    created_at: str
    previous: MadeName | None = None
    metrics: dict[str, float] = {}
    judgement: Judgement | None = None


def check_pairing(two_tower: BundleManifest, heavy: BundleManifest | None, index: IndexManifest) -> None:
    """Refuse bundles and an index that do not belong together.

    A query embedding meets only pin embeddings of its own version, and encoded ad features only a heavy ranker whose ad
    side is encoded the same way.

    Raises:
        MismatchError: Names the two versions or fingerprints, and the command that makes a matching index.
    """
    _check_kind(two_tower, "two_tower")
    rebuild = f"run `adsieve index build` with the bundle {two_tower.version}"
    _check_equal("index", index.version, "was embedded by", index.two_tower, two_tower.version, rebuild)
    _check_equal("index", index.version, "is of scenario", index.scenario, two_tower.scenario, rebuild)
    ad_fingerprint = two_tower.side_fingerprints["ad"]
    _check_equal("index", index.version, "has ad fingerprint", index.ad_fingerprint, ad_fingerprint, rebuild)
    if heavy is not None:
        _check_heavy(two_tower, heavy, index)


def _check_heavy(two_tower: BundleManifest, heavy: BundleManifest, index: IndexManifest) -> None:
    _check_kind(heavy, "heavy")
    if heavy.scenario not in (None, two_tower.scenario):
        raise MismatchError(
            f"heavy bundle {heavy.version} is of scenario {heavy.scenario!r}, "
            f"two-tower bundle {two_tower.version} of {two_tower.scenario!r}; choose bundles of one scenario"
        )
    lacking = [task for task in two_tower.tasks if task not in heavy.tasks]
    if lacking:
        raise MismatchError(
            f"heavy bundle {heavy.version} lacks the tasks {lacking} of two-tower bundle {two_tower.version}; "
            "train the heavy ranker with them or distil a student without them"
        )
    rebuild = f"run `adsieve index build` with `--heavy` and the bundle {heavy.version}"
    if index.heavy_ad_fingerprint is None:
        raise MismatchError(f"index {index.version} has no block for a heavy ranker; {rebuild}")
    expected = heavy.side_fingerprints["ad"]
    _check_equal(
        "the heavy block of index", index.version, "is of ad schema", index.heavy_ad_fingerprint, expected, rebuild
    )


def _check_kind(bundle: BundleManifest, kind: str) -> None:
    if bundle.kind != kind:
        raise MismatchError(f"bundle {bundle.version} is of kind {bundle.kind!r}, expected {kind!r}")


def _check_equal(subject: str, version: str, verb: str, found: str | None, expected: str | None, remedy: str) -> None:
    if found != expected:
        raise MismatchError(f"{subject} {version} {verb} {found}, expected {expected}; {remedy}")
