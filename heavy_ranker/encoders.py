"""What turns raw features into a heavy ranker's encoded rows: all that a host needs that lets another run the model."""

from contracts.encoding import Encoder
from contracts.row_encoder import RowEncoder
from contracts.schema import FeatureSchema


class HeavyEncoders:
    """The encoders of one heavy bundle.

    Args:
        schema: Fitted.

    Attributes:
        tasks: In the order of the model's logits.
        query_rows: Encodes one request after another as ``query_encoder`` encodes columns.
        pair_encoder: None where the schema has no pair features.
    """

    def __init__(self, schema: FeatureSchema) -> None:
        self.tasks = schema.tasks
        self.query_encoder = Encoder(schema, "query")
        self.query_rows = RowEncoder(self.query_encoder)
        self.ad_encoder = Encoder(schema, "ad")
        self.pair_encoder = Encoder(schema, "pair") if schema.side_features("pair") else None
