"""`penstock inspect`: what is in a segment, in memory or on disk, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import AsJson
from penstock.cli.terminal import CommandFailed, fail, print_json, print_table

if TYPE_CHECKING:
    from penstock.wire.batch import BatchHeader


def inspect(
    file: Annotated[Path, typer.Argument(help="A .seg file in shared memory, or a .log file on disk.")],
    records: Annotated[bool, typer.Option("--records", "-r", help="The records of each batch too.")] = False,
    maximum: Annotated[int | None, typer.Option("--max", "-m", min=1, help="Only the first batches.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the record batches of a segment and check their CRCs. Exits with 1 when something is damaged.

    Example: penstock inspect /dev/shm/penstock/1/*/0/00000000000000000000.seg --records
    """
    header, content = _open(file)
    batches = []
    for batch in _batches(content, records):
        batches.append(batch)
        if maximum is not None and len(batches) >= maximum:
            break
    whole = batches[-1]["position"] + batches[-1]["size"] if batches else 0
    rest = 0 if maximum is not None and len(batches) >= maximum else len(content) - whole
    if as_json:
        print_json({"file": str(file), "segment": header, "batches": batches, "bytes_after_last_batch": rest})
    else:
        _show(file, header, batches, records)
    bad = [batch["position"] for batch in batches if not batch["crc_ok"]]
    if bad:
        fail(f"{file}: {len(bad)} batches fail their CRC, the first at position {bad[0]}")
    if rest:
        fail(f"{file}: {rest} bytes after position {whole} are no whole record batch: a torn tail, or damage")


def _open(file: Path) -> tuple[dict[str, Any] | None, memoryview]:
    """A segment's header, if it has one, and the bytes of its batches."""
    from penstock.shm import layout

    try:
        content = memoryview(file.read_bytes())
    except OSError as error:
        raise CommandFailed(f"{file}: {error.strerror}") from None
    if file.suffix != layout.SEGMENT_SUFFIX:
        return None, content
    if (
        len(content) < layout.SEGMENT_HEADER
        or bytes(content[: len(layout.SEGMENT_MAGIC)]) != layout.SEGMENT_MAGIC
    ):
        fail(f"{file} is not a Penstock segment")

    def word(at: int) -> int:
        return int.from_bytes(content[at : at + layout.WORD], "little", signed=True)

    generation, written = word(layout.SEGMENT_GENERATION), word(layout.SEGMENT_WRITTEN)
    header = {
        "generation": generation,
        "retiring": generation % 2 == 1,
        "topic_id": bytes(content[layout.SEGMENT_TOPIC : layout.SEGMENT_TOPIC + 16]).hex(),
        "partition": word(layout.SEGMENT_PARTITION),
        "base_offset": word(layout.SEGMENT_BASE),
        "written": written,
        "capacity": len(content) - layout.SEGMENT_HEADER,
        "next_base": word(layout.SEGMENT_NEXT),
        "max_timestamp": word(layout.SEGMENT_MAX_TIME),
    }
    return header, content[layout.SEGMENT_HEADER : layout.SEGMENT_HEADER + max(0, written)]


def _batches(content: memoryview, with_records: bool) -> Iterator[dict[str, Any]]:
    from penstock.wire import batch

    for position, header in batch.walk(content, 0, len(content)):
        whole = content[position : position + header.size]
        described = _described(position, header)
        described["crc_ok"] = batch.crc_matches(whole)
        if with_records:
            described["records"] = _records(whole)
        yield described


def _described(position: int, header: BatchHeader) -> dict[str, Any]:
    from penstock.wire import batch
    from penstock.wire.records import Compression

    codecs = {int(codec): codec.name.lower() for codec in Compression}
    return {
        "position": position,
        "size": header.size,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.record_count,
        "leader_epoch": header.leader_epoch,
        "compression": codecs.get(header.compression, str(header.compression)),
        "timestamps": "LogAppendTime" if header.attributes & batch.LOG_APPEND_TIME else "CreateTime",
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "control": header.is_control,
        "transactional": header.is_transactional,
        "crc": f"{header.crc:08x}",
    }


def _records(whole: memoryview) -> list[dict[str, Any]]:
    from penstock.wire.records import CorruptRecords, decode_records

    def text(content: bytes | None) -> str | None:
        return None if content is None else content.decode(errors="backslashreplace")

    try:
        return [
            {
                "offset": record.offset,
                "timestamp": record.timestamp,
                "key": text(record.key),
                "value": text(record.value),
                "headers": [[name, text(value)] for name, value in record.headers],
            }
            for record in decode_records(whole)
        ]
    except CorruptRecords as error:
        return [{"error": str(error)}]


_COLUMNS = (
    "position",
    "size",
    "base_offset",
    "last_offset",
    "count",
    "leader_epoch",
    "compression",
    "max_timestamp",
    "producer_id",
    "base_sequence",
    "crc_ok",
)


def _show(file: Path, header: dict[str, Any] | None, batches: list[dict[str, Any]], records: bool) -> None:
    typer.echo(file)
    if header is not None:
        typer.echo("  ".join(f"{name}={value}" for name, value in header.items()))
    if not records:
        rows = [[batch[column] for column in _COLUMNS] for batch in batches]
        print_table("", [column.replace("_", " ") for column in _COLUMNS], rows)
        return
    for batch in batches:
        typer.echo("batch  " + "  ".join(f"{name}={batch[name]}" for name in _COLUMNS))
        for record in batch["records"]:
            typer.echo("  " + "  ".join(f"{name}={value!r}" for name, value in record.items()))
