#!/usr/bin/env python3
"""Writes unicode_tables.inc: code point ranges of letters and numbers, and simple case mappings.

Letters and numbers are those of the Unicode version that Hugging Face `tokenizers` 0.23 matches with, since ids depend on
them; case mappings are those of the Python that runs this, as templates see them there.

    pip install unicodedata2==16.0.0
    python3 make_unicode_tables.py > unicode_tables.inc
"""
import sys
import unicodedata

import unicodedata2


def ranges(test):
    out = []
    for cp in range(0x110000):
        if 0xD800 <= cp < 0xE000 or not test(cp):
            continue
        if out and out[-1][1] == cp - 1:
            out[-1][1] = cp
        else:
            out.append([cp, cp])
    return out


def case_runs(convert):
    """Runs (first, last, step, delta) of code points that map to one other code point."""
    pairs = []
    for cp in range(0x80, 0x110000):
        if 0xD800 <= cp < 0xE000:
            continue
        other = convert(chr(cp))
        if len(other) == 1 and ord(other) != cp:
            pairs.append((cp, ord(other) - cp))
    runs = []
    for cp, delta in pairs:
        if runs:
            first, last, step, d = runs[-1]
            if d == delta and (cp - last == step or (first == last and cp - last in (1, 2))):
                runs[-1] = (first, cp, cp - last, d)
                continue
        runs.append((cp, cp, 1, delta))
    return runs


def write(kind, name, rows):
    print(f"constexpr {kind} {name}[] = {{")
    line = "   "
    for row in rows:
        item = " {" + ", ".join(row) + "},"
        if len(line) + len(item) > 100:
            print(line)
            line = "   "
        line += item
    print(line)
    print("};")


def main():
    print(f"// Made by make_unicode_tables.py from Unicode {unicodedata2.unidata_version} (letters, numbers) and "
          f"{unicodedata.unidata_version} (case). Do not edit.")
    print("// clang-format off")
    for name, initial in (("kLetters", "L"), ("kNumbers", "N")):
        found = ranges(lambda cp: unicodedata2.category(chr(cp))[0] == initial)
        write("Range", name, [(hex(a), hex(b)) for a, b in found])
    for name, convert in (("kToUpper", str.upper), ("kToLower", str.lower)):
        write("CaseRun", name, [(hex(a), hex(b), str(s), str(d)) for a, b, s, d in case_runs(convert)])
    print("// clang-format on")


if __name__ == "__main__":
    sys.exit(main())
