"""Counts the lines and tokens of a source by one written rule for CUDA and Triton, always from the text of the file.

The rule:
    A token counts unless it is a comment, a docstring, white space or plain punctuation: a bracket ( ) [ ] { } <<< >>>,
    a comma, a semicolon or a colon. A line counts if it holds a token that counts; a token over several lines counts
    on each of them. Adjacent string literals are one token. So no formatter can change the number of tokens: line
    breaks, redundant brackets, trailing commas, semicolons and the cuts in a long string are not tokens.
    A docstring is what Python says it is: a string that is the first statement of a module, class or function. Any
    other bare string is code. So are preprocessor directives, and what stands between #if 0 and #endif.
Roles:
    kernel   the functions that run on the device (__global__, __device__, @triton.jit) with their template lines,
             attributes and decorators, and every other top-level definition (constant, struct, macro) that such code
             names, directly or through another definition
    launch   the rest of a twin's file: the host function, includes and imports, constants that no device code names
    binding  all of bindings/<stem>.cu
"""

import ast
import hashlib
import io
import re
import tokenize
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from sys import maxsize
from typing import NamedTuple

from pygments.lexer import RegexLexer, include
from pygments.token import Comment, Generic, Name, Punctuation, String, Whitespace


class Count(NamedTuple):
    """Lines and tokens by role: "kernel" and "launch" of a twin, "binding" of a binding."""

    lines: dict[str, int]
    tokens: dict[str, int]


class Phase(NamedTuple):
    """A numbered phase comment, `// 1. row maximum: a remark` or the same after `#`, and the line it stands on, from 1.

    The title ends at the colon. Twins have the same titles; the remark is each one's own.
    """

    number: int
    title: str
    line: int


class _Token(NamedTuple):
    kind: str  # "word" and "string" count; "mark" is punctuation, "break" the end or the indentation of a statement
    text: str
    lines: tuple[int, ...]


def count(path: Path, role: str | None = None) -> Count:
    """Count a twin by role, or the whole file as `role`. Raises SyntaxError or ValueError on a broken file."""
    starts, roles = ([0], [role]) if role else _roles(path)
    tokens = [token for token in _tokens(path)[0] if token.kind in ("word", "string")]
    owners = [roles[bisect_right(starts, token.lines[0]) - 1] for token in tokens]
    of_line = {line: owner for owner, token in zip(owners, tokens, strict=True) for line in token.lines}
    none = dict.fromkeys([role] if role else ["kernel", "launch"], 0)
    return Count({**none, **Counter(of_line.values())}, {**none, **Counter(owners)})


def total(paths: Sequence[Path]) -> Count:
    """The counts of several files of one implementation together."""
    counts = [count(path) for path in paths]
    return Count(
        *({role: sum(part[role] for part in parts) for role in parts[0]} for parts in zip(*counts, strict=True))
    )


def fingerprint(paths: Sequence[Path]) -> str:
    """SHA-256 of the tokens of the sources, in the order given, without comments, docstrings and idle white space."""
    texts = [token.text for path in paths for token in _tokens(path)[0]]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def split_phases(path: Path) -> list[Phase]:
    """The numbered comments that begin their line, in file order."""
    source = _read(path).split("\n")
    lines = [comment.lines[0] for comment in _tokens(path)[1]]
    found = [(re.fullmatch(r"\s*(?://|#) (\d+)\. ([^:]*[^:\s]).*", source[line - 1]), line) for line in lines]
    return [Phase(int(match[1]), match[2], line) for match, line in found if match]


def _read(path: Path) -> str:
    return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")


def _tokens(path: Path) -> tuple[list[_Token], list[_Token]]:
    """The tokens of a file without its docstrings, and its comments."""
    tokens, comments = list[_Token](), list[_Token]()
    for kind, text, line in _python_tokens(path) if path.suffix == ".py" else _cuda_tokens(path):
        lines = tuple(range(line, line + text.count("\n") + 1))
        last = tokens[-1].kind if tokens else "break"
        if kind == "string" == last:
            tokens[-1] = _Token(kind, tokens[-1].text + text, tokens[-1].lines + lines)
        elif not (kind == "break" == last and text == "<NEWLINE>"):  # the line end that an omitted docstring leaves
            (comments if kind == "comment" else tokens).append(_Token(kind, text, lines))
    return tokens, comments


_MARKS = {*"()[]{},;:", "<<<", ">>>"}
_NAMELESS = {"import", "from", "if", "for", "while", "with", "try"}
_PYTHON_KINDS = {"STRING": "string", "COMMENT": "comment", "NL": "", "ENDMARKER": ""}
_PYTHON_KINDS |= dict.fromkeys(["NEWLINE", "INDENT", "DEDENT"], "break")


def _python_tokens(path: Path) -> Iterator[tuple[str, str, int]]:
    """Kind, text and first line of each token. An f-string is one token, as it was before Python 3.12."""
    source = _read(path).split("\n")
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse("\n".join(source), str(path))) if isinstance(node, documented)]
    firsts = [node.body[0] for node in nodes if ast.get_docstring(node, clean=False) is not None]
    docstrings = {(at.lineno, len(source[at.lineno - 1].encode()[: at.col_offset].decode())) for at in firsts}
    in_docstring, open_fstrings = False, []
    for token in tokenize.generate_tokens(io.StringIO("\n".join(source)).readline):
        name, text, start = tokenize.tok_name[token.type], token.string, token.start
        in_docstring = start in docstrings or (in_docstring and name != "NEWLINE" and text != ";")
        if name.endswith("STRING_START"):
            open_fstrings.append(start)
        elif name.endswith("STRING_END"):
            start = open_fstrings.pop()
            spanned = "\n".join(source[start[0] - 1 : token.end[0]])
            name, text = "STRING", spanned[start[1] : len(spanned) - len(source[token.end[0] - 1]) + token.end[1]]
        kind = _PYTHON_KINDS.get(name, "mark" if text in _MARKS else "word")
        if kind and not in_docstring and not open_fstrings:
            yield kind, f"<{name}>" if kind == "break" else text, start[0]


class _CudaLexer(RegexLexer):
    """CUDA C++ for Pygments, whole tokens, with directives as code.

    Pygments' own CudaLexer cannot serve: it hides the body of a #define, takes the // of a string in it for a comment
    and a comment inside a signature for code, and reads "n-1" as two tokens but "n - 1" as three.
    """

    tokens = {
        "root": [
            (r"\\[^\S\n]*\n|\s+", Whitespace),
            (r"//(?:\\\n|[^\n])*|/\*[\s\S]*?(?:\*/|\Z)", Comment),
            (r'(?:u8|[uUL])?R"([^()\\\s]*)\([\s\S]*?\)\1"', String),
            (r"""(?:u8|[uUL])?(?:"(?:\\[\s\S]|[^"\\\n])*"|'(?:\\.|[^'\\\n])+')""", String),
            (r"#[^\S\n]*include\b", Name, "include"),
            (r"#[^\S\n]*\w*", Name, "directive"),
            (r"<<<", Punctuation, "launch"),
            (r"\.?\d(?:[eEpP][+-]|'?\w|\.)*|[^\W\d][\w$]*", Name),
            (r"::|->\*?|<=>|\+\+|--|&&|\|\||[-+*/%&|^!=<>]=|\.\.\.|\S", Name),
        ],
        "launch": [(r">>>", Punctuation, "#pop"), include("root")],
        "include": [(r"<[^>\n]*>", String), include("directive")],
        "directive": [(r"\n", Generic, "#pop"), (r"[^\S\n]+", Whitespace), (r"##?", Name), include("root")],
    }


def _cuda_tokens(path: Path) -> Iterator[tuple[str, str, int]]:
    """Kind, text and first line of each token. The end of a directive is a break."""
    line = 1
    for _, kind, text in _CudaLexer().get_tokens_unprocessed(_read(path) + "\n"):
        if kind in Comment or kind in String:
            yield "comment" if kind in Comment else "string", text, line
        elif kind is Generic:
            yield "break", "<NEWLINE>", line
        elif kind not in Whitespace:
            yield "mark" if text in _MARKS else "word", "".join(text.split()), line
        line += text.count("\n")


def _roles(path: Path) -> tuple[list[int], list[str]]:
    """The first line and the role of each top-level statement of a twin."""
    statements = list(_python_statements(path) if path.suffix == ".py" else _cuda_statements(path))
    named: set[str] = set()

    def on_device(texts: list[str]) -> bool:
        return _defined(texts) in named or not {"__global__", "__device__", "jit"}.isdisjoint(texts)

    for _ in statements:  # as many rounds as definitions can lean on one another
        for _, texts in statements:
            named.update(texts if on_device(texts) else ())
    return [line for line, _ in statements], ["kernel" if on_device(texts) else "launch" for _, texts in statements]


def _python_statements(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The first line and the tokens of each top-level statement."""
    tokens, _ = _tokens(path)
    for node in ast.parse(_read(path), str(path)).body:
        begin = min(part.lineno for part in [node, *getattr(node, "decorator_list", [])])
        texts = [token.text for token in tokens if begin <= token.lines[0] <= (node.end_lineno or begin)]
        if texts:  # not so a docstring
            yield begin, texts


def _cuda_statements(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The first line and the tokens of each top-level statement; the inside of a namespace is top-level too."""
    texts: list[str] = []
    begin, depth, in_directive = 0, 0, False
    for kind, text, lines in [*_tokens(path)[0], _Token("mark", ";", (maxsize,))]:
        begin = begin if texts else lines[0]
        texts.append(text)
        if in_directive or text[0] == "#":
            in_directive = kind != "break"
            ends = not in_directive and texts[0][0] == "#"
        elif text == "{" and not depth and ("namespace" in texts or texts[:-1] == ["extern", '"C"']):
            ends = True
        else:
            depth = max(0, depth + (text in "([{") - (text in ")]}"))
            ends = not depth and text in ";}"
        if ends:
            if not _MARKS.issuperset(texts):  # as is the end of a namespace or a struct
                yield begin, texts
            texts = []
    if depth:
        raise ValueError(f"{path}: a bracket in the statement that begins at line {begin} is never closed")


def _defined(texts: list[str]) -> str:
    """The name that a top-level statement defines: the macro's, or the last one before its value, body or end."""
    if texts[0][0] == "#" or texts[0] in _NAMELESS:
        return texts[1] if texts[0] == "#define" else ""
    name, depth = "", 0
    for text in texts:
        if not depth and text in ("=", "{", ":", ";", "->"):
            break
        depth += (text in "([<") - (text in ")]>")
        name = text if not depth and text.isidentifier() else name
    return name
