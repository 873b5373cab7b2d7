"""What tests of prepared tokens share: calling scripts/prepare_data.py, and reading what it wrote.

The reader is made from the format's table (runtime/data/token_file.h) and not from the writer.
"""

import json
import pathlib
import shutil
import struct
import subprocess
import sys
import zlib
from array import array

import programs

ROOT = programs.ROOT
SCRIPT = ROOT / "scripts" / "prepare_data.py"
FIXTURES = ROOT / "tests" / "golden" / "prepare"
SKIPPED = 77  # to ctest
sys.path.insert(0, str(ROOT / "scripts"))


def prepare(*arguments, status=None, **options):
    """The finished process; it must end with `status` if that is given."""
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=240, **options)
    assert status in (None, process.returncode), process
    return process


def prepare_good(out, *arguments, warning=None):
    """Prepares and reads `out`; with `warning`, one line is said that holds it."""
    process = prepare("--out", out, *arguments, status=0)
    assert process.stderr.count("\n") == (warning is not None), process.stderr
    assert warning is None or warning in process.stderr, process.stderr
    return Tokens(out)


def error_of(process, status, program="prepare_data.py"):
    """The one message of a call that must fail."""
    assert process.returncode == status, f"status {process.returncode}: {process.stderr}"
    (line,) = process.stderr.splitlines()
    assert line.startswith(f"{program}: error: "), line
    return line


class Tokens:
    """A `.tok` file: ids, one bool per id (learned or not), where documents start, and which of them are of
    the record of the one before."""

    def __init__(self, path):
        data = pathlib.Path(path).read_bytes()

        def number(offset, size):
            return int.from_bytes(data[offset:offset + size], "little")

        assert data[:8] == b"fsdp-tok" and number(8, 4) == 1 and number(12, 4) == 128
        width, count, documents = number(16, 4), number(32, 8), number(40, 8)
        self.width, self.packed, self.bytes = width, number(20, 4) & 1, number(20, 4) & 2
        self.vocabulary, self.hash = number(24, 8), number(56, 8)
        self.first, self.last = struct.unpack("<2q", data[64:80])
        mask = (128 + count * width + 7) // 8 * 8
        starts = (mask + (count + 7) // 8 + 7) // 8 * 8
        template = starts + 8 * documents
        joined = template + (number(104, 8) + 7) // 8 * 8
        marks = (documents + 7) // 8 if number(20, 4) & 4 else 0
        assert number(96, 8) == len(data) == joined + (marks + 7) // 8 * 8
        assert zlib.crc32(data[joined:joined + marks]) == number(112, 4) and number(116, 4) == 0
        self.joined = [bool(marks and data[joined + i // 8] >> i % 8 & 1) for i in range(documents)]
        self.template = data[template:template + number(104, 8)]
        sections = (data[128:128 + count * width], data[mask:mask + (count + 7) // 8], data[starts:template],
                    self.template)
        assert [zlib.crc32(section) for section in sections] == [number(80 + 4 * i, 4) for i in range(4)]
        self.ids = list(array({1: "B", 2: "H", 4: "I"}[width], sections[0]))
        self.learned = [bool(sections[1][i // 8] >> i % 8 & 1) for i in range(count)]
        self.starts = list(struct.unpack(f"<{documents}Q", sections[2]))
        assert number(48, 8) == sum(self.learned)
        assert self.starts[0] == 0 and all(a < b for a, b in zip(self.starts, self.starts[1:] + [count]))
        assert not any(self.learned[start] for start in self.starts)
        assert max(self.ids) < self.vocabulary

    def documents(self):
        """The ids of each document."""
        return [self.ids[a:b] for a, b in zip(self.starts, self.starts[1:] + [len(self.ids)])]

    def learned_ids(self):
        """The ids of each document that the loss counts."""
        ends = self.starts[1:] + [len(self.ids)]
        return [[self.ids[i] for i in range(a, b) if self.learned[i]] for a, b in zip(self.starts, ends)]


def copy_tokenizer(source, model):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, model)


def bytes_of_tokens(folder):
    """What each token of a byte-level BPE stands for: bytes, which GPT-2's alphabet writes as letters; of
    special ones no bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(byte): byte for byte in plain}
    letters |= {chr(256 + i): byte for i, byte in enumerate(sorted(set(range(256)) - set(plain)))}
    definition = json.loads((folder / "tokenizer.json").read_text())
    special = {token["id"] for token in definition["added_tokens"]}
    vocabulary = definition["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(len(vocabulary)))
    return {i: b"" if i in special else bytes(letters[c] for c in token) for token, i in vocabulary.items()}


def run_tests(tests):
    """Calls each with a folder of its own, and ends the program: with 1 if one of them fails."""
    failures, work = 0, programs.folder("prepared").resolve()
    for test in tests:
        folder = work / test.__name__
        folder.mkdir()
        try:
            test(folder)
            print(f"ok      {test.__name__}")
        except AssertionError as error:
            failures += 1
            line = error.__traceback__.tb_next.tb_lineno
            print(f"FAILED  {test.__name__}, line {line}: {error}")
    sys.exit(failures > 0)


def run_tests_with(packages, what, tests):
    """run_tests if `packages` of PyPI (scripts/common/environment.py) are available; else SKIPPED."""
    from common.errors import EnvironmentFailure
    try:
        packages.ensure(packages.default_folder())  # may start the program anew in the environment
    except EnvironmentFailure as failure:
        print(f"SKIPPED: nothing of {what} was tested: {failure}")
        sys.exit(SKIPPED)
    run_tests(tests)
