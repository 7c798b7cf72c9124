"""Writes the raw rows of a run, in bounded memory: as gzipped JSON lines, or as Parquet (the extra `parquet`)."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dispatcher.errors import DispatcherError
from loadgen.attack.records import ERRORS, Records


class RowsError(DispatcherError):
    """The rows cannot be written in this format."""


def columns(records: Records, urls: Sequence[str], rows: slice) -> dict[str, list[Any]]:
    """Return the columns of some rows as they are written.

    Times are seconds from the start of the run, None if the thing has not happened. urls: by target.
    """

    def seconds(name: str) -> list[float | None]:
        values: list[float] = getattr(records, name)[rows].round(9).tolist()
        return [None if math.isnan(value) else value for value in values]

    return {
        "planned": seconds("planned"),
        "sent": seconds("sent"),
        "done": seconds("done"),
        "status": records.status[rows].tolist(),
        "error": [ERRORS[code] for code in records.error[rows].tolist()],
        "pool": [records.names[code] for code in records.pool[rows].tolist()],
        "url": [urls[code] for code in records.target[rows].tolist()],
        "body": records.body[rows].tolist(),
        "process": records.owner[rows].tolist(),
    }


def write_rows(records: Records, urls: Sequence[str], folder: Path, rows_format: str) -> None:
    """Write all rows into the folder. rows_format: jsonl or parquet. Raises RowsError and OSError."""
    (_write_parquet if rows_format == "parquet" else _write_jsonl)(records, urls, folder)


def _write_jsonl(records: Records, urls: Sequence[str], folder: Path) -> None:
    with (folder / "requests.jsonl.gz").open("wb") as raw, gzip.GzipFile("", "wb", 3, raw, mtime=0) as file:
        for rows in records.chunks():
            by_name = columns(records, urls, rows)
            values = zip(*by_name.values(), strict=True)
            file.write("".join(f"{json.dumps(dict(zip(by_name, row, strict=True)))}\n" for row in values).encode())


def _write_parquet(records: Records, urls: Sequence[str], folder: Path) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise RowsError("Parquet needs pyarrow: pip install 'lased-dispatcher[parquet]'") from error
    text, float64 = pa.dictionary(pa.int32(), pa.string()), pa.float64()
    schema = pa.schema(
        [
            ("planned", float64),
            ("sent", float64),
            ("done", float64),
            ("status", pa.int16()),
            ("error", text),
            ("pool", text),
            ("url", text),
            ("body", pa.uint32()),
            ("process", pa.uint8()),
        ]
    )
    with pq.ParquetWriter(folder / "requests.parquet", schema) as writer:
        for rows in records.chunks():
            writer.write_table(pa.Table.from_pydict(columns(records, urls, rows), schema=schema))
