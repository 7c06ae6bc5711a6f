"""Reads text columns of Parquet as the dictionaries that their files hold, instead of a text for every value.

Most text of a catalogue repeats. A file holds it as a dictionary for each row group and a number for each value. What
is read so is checked, kept and hashed once for each distinct text.
"""

from collections.abc import Collection

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.types as kinds

_TEXT = pa.dictionary(pa.int32(), pa.string())


def by_dictionary(
    fragment: ds.ParquetFileFragment, schema: pa.Schema, columns: Collection[str]
) -> tuple[ds.ParquetFileFragment, pa.Schema]:
    """The same file, and the schema of its dataset, with text and lists of text of these columns as dictionaries.

    A column of another type, or of which the file has another type than the dataset, is read as before.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> import pyarrow.parquet as pq
        >>> table = pa.table({"words": [["a", "b"], ["a"]], "size": [1, 2]})
        >>> with TemporaryDirectory() as directory:
        ...     pq.write_table(table, f"{directory}/ads.parquet")
        ...     (fragment,) = ds.dataset(directory).get_fragments()
        ...     fragment, schema = by_dictionary(fragment, table.schema, ["words", "size"])
        ...     read = fragment.to_table(schema=schema)
        >>> read["words"].chunk(0).values.dictionary.to_pylist(), read["size"].type
        (['a', 'b'], DataType(int64))
    """
    of_file = fragment.physical_schema
    types = {
        name: _with_dictionary(schema.field(name).type)
        for name in columns
        if name in of_file.names and of_file.field(name).type == schema.field(name).type
    }
    changed = {name: type_ for name, type_ in types.items() if type_ is not None}
    paths = [column.path for column in fragment.metadata.schema if column.path.partition(".")[0] in changed]
    options = ds.ParquetReadOptions(dictionary_columns=paths)
    read = ds.ParquetFileFormat(read_options=options).make_fragment(fragment.path, fragment.filesystem)
    fields = [field.with_type(changed.get(field.name, field.type)) for field in schema]
    return read, pa.schema(fields)


def _with_dictionary(type_: pa.DataType) -> pa.DataType | None:
    """The type of dictionaries of a type of texts; None for another one."""
    if kinds.is_string(type_):
        return _TEXT
    if kinds.is_list(type_) and kinds.is_string(type_.value_type):
        return pa.list_(type_.value_field.with_type(_TEXT))
    return None
