"""scripts/prepare_data.py with .parquet files, as data sets of the hub are: the tokens are those of the same
records as .jsonl. Skipped where pyarrow and tokenizers cannot be had from PyPI."""

import json

import prepared
from prepared import FIXTURES, error_of, prepare, prepare_good
from prepare.environment import TABLES

ALPACA = [{"instruction": f"Add {i}.", "input": "" if i % 3 else f"to {i}", "output": f"three {i}",
           "text": "all of it", "number": i} for i in range(1300)]
CHATS = [{"messages": [{"role": "user", "content": "One?"}, {"role": "assistant", "content": f"Two {i}."}],
          "text": None, "weight": float(i > 0)} for i in range(3)]
ENDS = [{"prompt": "The", "completion": " wren."}, {"prompt": "A", "completion": " bird."}]


def rows_are_records(work):
    import pyarrow
    from pyarrow import parquet
    for records in (ALPACA, CHATS, ENDS):
        parquet.write_table(pyarrow.Table.from_pylist(records), work / "x.parquet", row_group_size=700)
        lines = [{key: value for key, value in record.items() if value is not None} for record in records]
        for name in ("x.jsonl", "y.jsonl"):
            (work / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        for options in (["--model", FIXTURES], [], ["--mask-prompt", "off", "--procs", 3]):
            # Answers of chats end with what is text to that tokenizer.
            warned = {"warning": "<|im_end|>"} if "--model" in options and records is CHATS else {}
            options = [*options, "--chat-template", "chatml"]
            prepare_good(work / "a.tok", *options, work / "x.parquet", work / "x.jsonl", **warned)
            prepare_good(work / "b.tok", *options, work / "x.jsonl", work / "x.parquet", **warned)
            tokens = prepare_good(work / "c.tok", *options, work / "x.jsonl", work / "y.jsonl", **warned)
            assert len(tokens.starts) == 2 * sum(record.get("weight", 1) for record in records)
            assert len({(work / name).read_bytes() for name in ("a.tok", "b.tok", "c.tok")}) == 1


def columns_are_named(work):
    """Columns that are not used are counted, and others may be said to be a record's."""
    import pyarrow
    from pyarrow import parquet
    rows = [{"question": "a", "answer": "b", "vector": [1.0]}] * 3
    parquet.write_table(pyarrow.Table.from_pylist(rows), work / "x.parquet")
    process = prepare("--out", work / "x.tok", "--fields", "prompt=question,completion=answer",
                      work / "x.parquet")
    assert process.returncode == 0 and "ignored: vector in 3 records" in process.stdout, process
    assert bytes(prepared.Tokens(work / "x.tok").ids) == b"ab\0" * 3


def bad_tables_are_refused(work):
    import pyarrow
    from pyarrow import parquet

    def refused(records, *options):
        parquet.write_table(pyarrow.Table.from_pylist(records), work / "x.parquet")
        return error_of(prepare("--out", work / "x.tok", *options, work / "x.parquet"), 3)

    assert "has the columns a, b, of which none is a record's" in refused([{"a": "x", "b": "y"}])
    assert "x.parquet:2: " in refused([{"text": "x"}, {"text": None}], "--strict")
    assert "x.parquet:1: " in refused([{"text": 5}])
    assert "no record with text" in refused([{"text": ""}])
    whole = (work / "x.parquet").read_bytes()
    for data in (b"PAR1" + bytes(100), whole[:-9], b"text"):
        (work / "x.parquet").write_bytes(data)
        message = error_of(prepare("--out", work / "x.tok", work / "x.parquet"), 3)
        assert "x.parquet: is not a readable Parquet file" in message, message
    assert not (work / "x.tok").exists()


prepared.run_tests_with(TABLES, "prepare_data.py with tables", [
    rows_are_records, columns_are_named, bad_tables_are_refused])
