"""Text of many kinds from the files of installed Debian packages, for tokenizer_bench.py.

A file is cut at line ends into documents of 2 to 64 KiB (what is left shorter is dropped), about what prompts have. Message
catalogues give their translations only, one a line; compressed files are unpacked; a file that is not UTF-8 or holds a zero
byte is left out. Files come in the order of a hash of their path, so the same packages give the same text, and no folder
comes first. A file gives documents to the measured text or to the training text, never to both.
"""

import dataclasses
import glob
import gzip
import hashlib
import os
import struct

DOCUMENT_BYTES_MIN = 2 << 10
DOCUMENT_BYTES_MAX = 64 << 10
FILE_BYTES_MAX = 4 << 20
MO_MAGIC = 0x950412DE


@dataclasses.dataclass(frozen=True)
class Kind:
    """Where text of one kind is found (patterns of paths), and how much of it is used."""

    name: str
    patterns: tuple
    measured_bytes: int
    training_bytes: int
    packages: str = ""  # what to install if there is too little


KINDS = (
    Kind("code", ("/usr/include/**/*.h", "/usr/include/**/*.hpp", "/usr/include/**/*.hh", "/usr/lib/python3*/**/*.py",
                  "/usr/share/perl/**/*.p[lm]", "/usr/share/cmake*/**/*.cmake", "/usr/share/vim/**/*.vim"),
         4_000_000, 24_000_000),
    Kind("English", ("/usr/share/doc/**/*", "/usr/share/man/man*/*.gz", "/usr/share/perl/**/*.pod"),
         2_000_000, 16_000_000),
    Kind("Chinese", ("/usr/share/man/zh_*/**/*.gz", "/usr/share/debian-reference/*.zh-cn.*", "/usr/share/**/tutor.zh_*utf-8",
                     "/usr/share/locale/zh_*/LC_MESSAGES/*.mo", "/usr/share/vim/**/zh_*UTF-8/**/*.mo"),
         3_000_000, 20_000_000, "manpages-zh debian-reference-zh-cn"),
    Kind("other languages", tuple(f"/usr/share/{folder}/{language}*/**/*" for folder in ("locale", "man") for language in
                                  ("ar", "de", "el", "es", "fa", "fr", "he", "hi", "ja", "ko", "pl", "pt", "ru", "th", "tr",
                                   "uk", "vi")),
         1_500_000, 20_000_000),
    Kind("emoji", ("/usr/share/unicode/emoji/*.txt",), 500_000, 2_000_000, "unicode-data"),
)


def translations(catalogue):
    """The translated messages of a .mo file, without the header that stands under the empty message."""
    magic, _, count, originals, translated = struct.unpack_from("<5I", catalogue)
    if magic != MO_MAGIC:
        raise ValueError("no little-endian message catalogue")
    out = []
    for i in range(count):
        if struct.unpack_from("<I", catalogue, originals + 8 * i)[0] == 0:
            continue
        size, at = struct.unpack_from("<2I", catalogue, translated + 8 * i)
        out.extend(catalogue[at:at + size].split(b"\0"))  # plural forms are set apart by zero bytes
    return b"\n".join(out) + b"\n"


def read_text(path):
    """The text of a file, or nothing if it is not text in UTF-8 (or too large to be somebody's prompt)."""
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > FILE_BYTES_MAX:
            return ""
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
            raw = file.read()
        if path.endswith(".mo"):
            raw = translations(raw)
        text = raw.decode("utf-8")
    except (OSError, EOFError, ValueError, struct.error):
        return ""
    return "" if "\0" in text else text


def cut(text):
    """Documents of whole lines. A line that is longer than a document makes its file unusable: it is no such text."""
    documents, lines, size = [], [], 0
    for line in text.splitlines(keepends=True):
        line_bytes = len(line.encode())
        if line_bytes > DOCUMENT_BYTES_MAX:
            return []
        if size + line_bytes > DOCUMENT_BYTES_MAX:
            documents.append("".join(lines))
            lines, size = [], 0
        lines.append(line)
        size += line_bytes
    if size >= DOCUMENT_BYTES_MIN:
        documents.append("".join(lines))
    return documents


def paths_of(kind):
    found = {os.path.realpath(path) for pattern in kind.patterns for path in glob.iglob(pattern, recursive=True)}
    return sorted(found, key=lambda path: hashlib.sha256(path.encode()).digest())


def collect(kind):
    """(measured, training) documents of a kind; of each, files until there are enough bytes."""
    measured, training = [], []
    measured_bytes = training_bytes = 0
    seen = set()  # many packages bring the same licence or header
    for path in paths_of(kind):
        documents = [document for document in cut(read_text(path)) if document not in seen]
        seen.update(documents)
        into_measured = measured_bytes < kind.measured_bytes
        for document in documents:
            size = len(document.encode())
            if into_measured and measured_bytes < kind.measured_bytes:
                measured.append(document)
                measured_bytes += size
            elif not into_measured and training_bytes < kind.training_bytes:
                training.append(document)
                training_bytes += size
        if training_bytes >= kind.training_bytes:
            break
    if measured_bytes < kind.measured_bytes:
        hint = f"; apt-get install {kind.packages}" if kind.packages else ""
        raise SystemExit(f"{kind.name}: {measured_bytes} bytes of text found, {kind.measured_bytes} are needed{hint}")
    return measured, training
