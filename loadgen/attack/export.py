"""Raw rows on disk: one object a line, gzipped (JSONL), or Parquet (the extra `parquet`). Written in bounded memory."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dispatcher.errors import DispatcherError
from loadgen.attack.records import ERRORS, Records

FORMS = ("jsonl", "parquet", "none")


class RowsError(DispatcherError):
    """Rows cannot be written or read here."""


def columns(records: Records, urls: Sequence[str], rows: slice) -> dict[str, list[Any]]:
    """Some rows as they are written: seconds from the start of the run, null where a thing has not happened."""

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


def write_rows(records: Records, urls: Sequence[str], folder: Path, form: str) -> Path:
    """form: jsonl or parquet. Raises RowsError, OSError."""
    return (_write_parquet if form == "parquet" else _write_jsonl)(records, urls, folder)


def _write_jsonl(records: Records, urls: Sequence[str], folder: Path) -> Path:
    path = folder / "requests.jsonl.gz"
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 3, raw, mtime=0) as file:
        for rows in records.chunks():
            found = columns(records, urls, rows)
            file.write("".join(f"{json.dumps(row)}\n" for row in _turned(found)).encode())
    return path


def _turned(found: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    return (dict(zip(found, values, strict=True)) for values in zip(*found.values(), strict=True))


def _write_parquet(records: Records, urls: Sequence[str], folder: Path) -> Path:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise RowsError("Parquet needs pyarrow: pip install 'lased-dispatcher[parquet]'") from error
    text, float64 = pa.dictionary(pa.int32(), pa.string()), pa.float64()
    schema = pa.schema([("planned", float64), ("sent", float64), ("done", float64), ("status", pa.int16()),
                        ("error", text), ("pool", text), ("url", text), ("body", pa.uint32()),
                        ("process", pa.uint8())])  # fmt: skip
    path = folder / "requests.parquet"
    with pq.ParquetWriter(path, schema) as writer:
        for rows in records.chunks():
            writer.write_table(pa.Table.from_pydict(columns(records, urls, rows), schema=schema))
    return path
