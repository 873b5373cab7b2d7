"""The project's documents as data: their fenced blocks, and the marks above them.

    <!-- KEY: VALUE -->      one or more, directly above a block
    ```sh
    a command
    ```

Marks of a `sh` block, which test_documents.py runs unless one says otherwise:

    not run: REASON           cannot be run here, and why
    run by: TEST              a different test runs it
    needs: NAME ...           Python packages that its scripts install; left out if they cannot be had
    makes: FILE               the command makes a file of this name, equal to FILE of the project
    options in the test: ...  appended to each fsdp_train of the block, to shorten it

and of a `text` block: `lines of: COMMAND`, whose output has these lines, in this order.
"""

import dataclasses
import re

import programs

MARK = re.compile(r"<!-- ([a-z ]+): (.*) -->$")
MARKS = {"sh": {"not run", "run by", "needs", "makes", "options in the test"},
         "text": {"lines of"}}
LANGUAGES = {"sh", "text", "json", "c"}


@dataclasses.dataclass
class Block:
    document: str  # its path from the root
    line: int  # of the fence, from 1
    language: str
    marks: dict
    text: str

    def __str__(self):
        return f"{self.document}:{self.line}"


def paths():
    """README.md, CONTRIBUTING.md and all of docs/."""
    files = [programs.ROOT / "README.md", programs.ROOT / "CONTRIBUTING.md"]
    return files + sorted((programs.ROOT / "docs").glob("*.md"))


def blocks(path):
    """The fenced blocks of a document, in order."""
    document = str(path.relative_to(programs.ROOT))
    found, marks, fence, lines = [], {}, None, []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.startswith("```") and fence is None:
            fence, lines = (number, line[3:]), []
        elif line == "```":
            place = f"{document}:{fence[0]}"
            assert fence[1] in LANGUAGES, f"{place}: a block needs one of the languages {LANGUAGES}"
            assert marks.keys() <= MARKS.get(fence[1], set()), f"{place}: marks {list(marks)}"
            found.append(Block(document, fence[0], fence[1], marks, "\n".join(lines)))
            fence, marks = None, {}
        elif fence is not None:
            lines.append(line)
        elif MARK.match(line):
            marks |= dict([MARK.match(line).groups()])
        else:
            assert not (marks and line), f"{document}:{number}: a mark that no block follows"
    assert fence is None and not marks, f"{document}: does not end its last block"
    return found
