"""What compiled loops need to know of the features of one side to write a row, in arrays.

The kinds and columns are those of ``contracts.kernels.writing``, which reads them.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from contracts.feature_encoders import (
    CategoricalEncoder,
    DenseEncoder,
    EmbeddingEncoder,
    FeatureEncoder,
    MultiCategoricalEncoder,
)
from contracts.hashing import HashedIds, TextIds, VocabularyIds
from contracts.lexicon import Entry, Lexicon
from contracts.sequence_encoder import FieldEncoder, SequenceEncoder

CATEGORICAL, MULTI_CATEGORICAL, DENSE, EMBEDDING, HISTORY, HISTORY_IDS, HISTORY_AGES = range(7)
GIVEN, OUTSIDE = 1, 2
"""What became of a feature; ``OUTSIDE`` is one that was given and holds a value outside its vocabulary."""


class RowPlan:
    """The plan of a side; ``columns`` are its features and fields, in the encoder's order, then come its histories.

    Args:
        parts: Encoders of all features.
        dense: Those of dense ones, in the order in which raw numbers stand.
    """

    def __init__(self, parts: Sequence[FeatureEncoder], dense: Sequence[DenseEncoder]) -> None:
        histories = [part for part in parts if isinstance(part, SequenceEncoder)]
        self.columns = [column for part in parts for column in part.columns]
        self._places = {column: place for place, column in enumerate(self.columns)}
        first_history = len(self.columns)
        self._first_group = first_history + len(histories) + 1
        self._groups: dict[int, int] = {}  # of vocabularies, by identity
        self._vocabularies: list[dict[str, int]] = []
        self._edges: list[np.ndarray] = [np.zeros(0, np.int64)]
        rows = [row for part in parts for row in self._rows(part, dense)]
        rows += [self._history(history, first_history + number) for number, history in enumerate(histories)]
        self.plan = np.array(rows, np.int64).reshape(-1, 7)
        self.edges_us = np.concatenate(self._edges)
        self.lexicon = Lexicon(self._entries(parts, histories))

    def _rows(self, part: FeatureEncoder, dense: Sequence[DenseEncoder]) -> Iterator[tuple[int, ...]]:
        match part:
            case CategoricalEncoder():
                yield (CATEGORICAL, part.position, 1, *self._table(part.ids_of), 0, 0)
            case MultiCategoricalEncoder():
                width = part.positions.stop - part.positions.start
                yield (MULTI_CATEGORICAL, part.positions.start, width, *self._table(part.ids_of), 0, 0)
            case DenseEncoder():
                yield (DENSE, dense.index(part), 1, 0, 0, 0, 0)
            case EmbeddingEncoder():
                yield (EMBEDDING, part.positions.start, part.positions.stop - part.positions.start, 0, 0, 0, 0)
            case SequenceEncoder():
                yield from (self._field(field) for field in part.fields)

    def _field(self, field: FieldEncoder) -> tuple[int, ...]:
        start, width = field.positions.start, field.positions.stop - field.positions.start
        if field.edges_us is None:
            return (HISTORY_IDS, start, width, *self._table(field.ids_of), 0, 0)
        first = sum(map(len, self._edges))
        self._edges.append(field.edges_us)
        return (HISTORY_AGES, start, width, 0, 0, first, first + len(field.edges_us))

    def _history(self, part: SequenceEncoder, place: int) -> tuple[int, ...]:
        first = self._places[part.fields[0].column] if part.fields else 0
        return (HISTORY, 0, part.max_length, 0, 1 + place, first, first + len(part.fields))

    def _table(self, ids_of: TextIds | None) -> tuple[int, int]:
        """Rows of a hashed table, 0 for another; the group of its vocabulary, 0 for none."""
        match ids_of:
            case HashedIds():
                return ids_of.buckets, 0
            case VocabularyIds():
                if id(ids_of) not in self._groups:
                    self._groups[id(ids_of)] = self._first_group + len(self._groups)
                    self._vocabularies.append(ids_of.known)
                return 0, self._groups[id(ids_of)]
        raise TypeError(f"ids_of must be hashed or of a vocabulary, got {ids_of!r}")

    def _entries(self, parts: Sequence[FeatureEncoder], histories: Sequence[SequenceEncoder]) -> Iterator[Entry]:
        for part in parts:
            if not isinstance(part, SequenceEncoder):
                yield 0, part.name, self._places[part.name]
        for place, history in enumerate(histories, len(self.columns)):
            yield 0, history.name, place
            for field in history.fields:
                yield 1 + place, field.column.removeprefix(f"{history.name}."), self._places[field.column]
        for group, known in enumerate(self._vocabularies, self._first_group):
            yield from ((group, text, own) for text, own in known.items())
