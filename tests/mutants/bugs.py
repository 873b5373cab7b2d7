"""Bugs that a person could make in one line of C or CUDA: bugs(lines, index) lists them.

The rules know no types: the build tells what no compiler takes. Left out are comments, strings, preprocessor
lines, assertions (they never fail, so that changing one changes nothing), and the calls that give memory and
files back, whose loss the sanitizers' builds find.
"""
import re

STRING_OR_COMMENT = re.compile(r"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.S)
ASSERTION = re.compile(r"\b(?:FSDP_CHECK|_Static_assert|static_assert|__launch_bounds__|assert)\s*\(")
# Any of the words of types, of statements, and of what is no variable.
WORDS = set("""auto bool break case char const constexpr continue default do double else enum extern false
float for if inline int int32_t int64_t long return short signed size_t sizeof static struct switch template
true typedef typename uint16_t uint32_t uint64_t uint8_t union unsigned void while FILE NULL""".split())
NAME = re.compile(r"(?<![\w.>])([a-z_]\w*)\b(?!\s*\()")
FIELD = re.compile(r"(?:->|(?<=[\w\])])\.)([a-z]\w*)\b(?!\s*\()")
CALL = re.compile(r"\b([A-Za-z_]\w*)\(")
SIMPLE = re.compile(r"[\w\->.&*\[\]]+(?: [+*-] [\w\->.\[\]]+)?")
STATEMENT = re.compile(r"\s*(?:[\w\->.*\[\]+ ()]*?[\w\])] (?:[-+*/|&%]|<<|>>)?= .*|[\w:>.-]+\(.*\)|"
                       r"continue|break|return\b.*|"
                       r"[\w\->.\[\]]+(?:\+\+|--)|(?:\+\+|--)[\w\->.\[\]]+);")
DECLARATION = re.compile(r"\s*(?:(?:const|static|constexpr|unsigned|struct) )*[A-Za-z_][\w:<>, ]*[ *&]+"
                         r"\w+(?:\[.*\])* = ")
GIVES_BACK = re.compile(r"\b(?:free|fclose|close|closedir|munmap|va_end|"
                        r"\w*_(?:destroy|free|close|decref|delete))\(")
OPERATORS = {"<": ["<="], "<=": ["<"], ">": [">="], ">=": [">"], "==": ["!="], "!=": ["=="], "&&": ["||"],
             "||": ["&&"], "+": ["-"], "-": ["+"], "*": ["/"], "/": ["*"], "%": ["/"], "&": ["|"], "|": ["&"],
             "+=": ["-=", "="], "-=": ["+=", "="], "*=": ["="], "|=": ["="], "&=": ["="]}
OPPOSITES = {"true": "false", "false": "true", "min": "max", "max": "min", "MIN": "MAX", "MAX": "MIN",
             "fmin": "fmax", "fmax": "fmin", "fminf": "fmaxf", "fmaxf": "fminf", "break": "continue",
             "continue": "break", "INT_MAX": "INT_MIN", "floor": "ceil", "ceil": "floor"}


def blanked(text):
    """The same text with comments, strings, preprocessor lines and assertions as spaces."""
    def spaces(piece):
        return re.sub(r"[^\n]", " ", piece)

    text = STRING_OR_COMMENT.sub(lambda match: spaces(match.group()), text)
    text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda match: spaces(match.group()), text, flags=re.M)
    for match in reversed(list(ASSERTION.finditer(text))):
        end = closing(text, match.end() - 1)
        end = len(text) if end is None else end + 1
        text = text[:match.start()] + spaces(text[match.start():end]) + text[end:]
    return text


def closing(text, start):
    """Where the bracket that opens at `start` closes."""
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] in "([{") - (text[i] in ")]}")
        if depth == 0:
            return i
    return None


def parts(text):
    """(start, end) of what commas of the outermost level separate."""
    found, depth, start = [], 0, 0
    for i, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            found.append((start, i))
            start = i + 1
    return found + [(start, len(text))]


def operators(line):
    for match in re.finditer(r"(?<= )(<=?|>=?|==|!=|&&|\|\||[-+*/%&|]=?)(?= )", line):
        for other in OPERATORS.get(match.group(), []):
            yield match.start(), match.end(), other


def opposites(line):
    for match in re.finditer(r"\b[A-Za-z]\w*\b", line):
        word = match.group()
        if word in OPPOSITES:
            yield match.start(), match.end(), OPPOSITES[word]
        for old, new in (("_min", "_max"), ("_max", "_min")):
            if word.endswith(old) and line[match.end():match.end() + 1] == "(":
                yield match.start(), match.end(), word[:-4] + new


TERM = re.compile(r" (?:[-+*/%]|&&|\|\|) (?:[\w\->.!]|\[[^\]]*\]|\((?=[^()]*\)[;), ])[^()]*\))+(?=[;,)\] ])")


def dropped_terms(line):
    """`a + b` without b, `a && b` without either, `a * b` without b."""
    for match in TERM.finditer(line):
        if line[match.end():match.end() + 2] not in (" *", " /", " <", " >", " =", " !"):
            yield match.start(), match.end(), ""
    for match in re.finditer(r"(?<=[( ])[\w\->.!]+ (?:&&|\|\||\+|\*) ", line):
        if line[match.start() - 2:match.start()] not in ("* ", "/ ", "< ", "> ", "= ", "- ") or \
                line[match.start() - 3:match.start()] == " = ":
            yield match.start(), match.end(), ""


def conditions(line):
    for match in re.finditer(r"\b(?:if|while) (?:constexpr )?\(", line):
        end = closing(line, match.end() - 1)
        if end is not None and match.group().startswith("if"):
            yield match.end() - 1, end + 1, "(!" + line[match.end() - 1:end + 1] + ")"
    for match in re.finditer(r"(?<![\w)])!(?=[\w(])", line):
        yield match.start(), match.end(), ""


def constants(line):
    for match in re.finditer(r"(?<![\w.])\d+(?![\w.])", line):
        value = int(match.group())
        for other in {0: [1], 1: [0, 2]}.get(value, [value - 1, value + 1]):
            yield match.start(), match.end(), str(other)
    for match in re.finditer(r"(?<![\w.])\d+\.\d*(?=f?\b|f?[^\w.])", line):
        value = float(match.group())
        yield match.start(), match.end(), "1.0" if value == 0.0 else str(2 * value)


def choices(line):
    for match in re.finditer(r" \? ([^?:]+) : ([^?:;,)]+)(?=[;,)])", line):
        if match.group(1).count("(") == match.group(1).count(")") and match.group(2).count("(") == 0:
            yield match.start(), match.end(), f" ? {match.group(2)} : {match.group(1)}"


def swaps(line):
    for match in CALL.finditer(line):
        end = closing(line, match.end() - 1)
        if end is None or match.group(1) in WORDS:
            continue
        inside = line[match.end():end]
        pieces = parts(inside)
        texts = [inside[first:last].strip() for first, last in pieces]
        for i in range(len(texts) - 1):
            if texts[i] != texts[i + 1] and SIMPLE.fullmatch(texts[i]) and SIMPLE.fullmatch(texts[i + 1]):
                start = match.end() + pieces[i][0] + inside[pieces[i][0]:].index(texts[i])
                yield start, match.end() + pieces[i + 1][1], f"{texts[i + 1]}, {texts[i]}"


def variables(line):
    names = [match for match in NAME.finditer(line) if match.group() not in WORDS]
    names = [match for match in names if not re.match(r" [*&]?\w", line[match.end():])]  # a type's name
    for match in names:
        before = line[:match.start()]
        if re.search(r"[\w>] [*&]*$", before) and not re.search(r"\breturn $", before):
            continue  # what is declared here
        for other in sorted({name.group() for name in names} - {match.group()}):
            yield match.start(), match.end(), other


def fields(line, around):
    near = sorted({match.group(1) for text in around for match in FIELD.finditer(text)})
    for match in FIELD.finditer(line):
        for other in near:
            if other != match.group(1):
                yield match.start(1), match.end(1), other


def statements(line, before):
    is_whole = STATEMENT.fullmatch(line.rstrip()) and re.search(r"[{};:]\s*$", before)
    if is_whole and not DECLARATION.match(line) and not GIVES_BACK.search(line):
        yield len(line) - len(line.lstrip()), len(line.rstrip()), ""


def bugs(lines, index):
    """By rule, what line `index` of the blanked lines could be: [(rule, [(start, end, text)])]."""
    line = lines[index]
    if not line.strip():
        return []
    before = next((text for text in reversed(lines[:index]) if text.strip()), "")
    rules = [("operator", operators(line)), ("opposite", opposites(line)), ("term", dropped_terms(line)),
             ("condition", conditions(line)), ("constant", constants(line)), ("choice", choices(line)),
             ("arguments", swaps(line)), ("variable", variables(line)),
             ("field", fields(line, lines[max(0, index - 6):index + 7])),
             ("statement", statements(line, before))]
    found = [(rule, list(changes)) for rule, changes in rules]
    return [(rule, changes) for rule, changes in found if changes]
