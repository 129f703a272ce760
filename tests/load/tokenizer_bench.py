#!/usr/bin/env python3
"""Encodes the same text with Quartet's tokenizer and with Hugging Face `tokenizers`, on one core each.

The vocabulary has the size and form of the real model's and is trained for the purpose (kept in --work): byte-level BPE with
the demo model's pre-tokenizer and added tokens, on text that the measured text is no part of. Measured is processor time for
text in memory -> ids in memory, in passes that take turns; every id is compared. The last rows are text that no cache of
words helps with.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install tokenizers==0.23.3
    apt-get install manpages-zh debian-reference-zh-cn unicode-data   # Chinese text, emoji
    ninja -C build/cpu quartet-tokenizer-bench
    /tmp/venv/bin/python tests/load/tokenizer_bench.py --bin build/cpu/bin

Exits with 1 if an id differs, or if Quartet's median is the slower one in any row.
"""

import argparse
import array
import base64
import hashlib
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time

# Read when the library is loaded.
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import tokenizers  # noqa: E402
import tokenizer_corpus  # noqa: E402

SOURCE = pathlib.Path(__file__).resolve().parents[2]
MODEL_FILE = SOURCE / "models/quartet-demo-exl3/tokenizer.json"
VOCABULARY = 154_820  # base entries of the real model
HOSTILE_BYTES = 1_000_000
# Documents in one call of the other library: many enough that calls cost nothing, few enough that what it returns stays in
# the processor's caches.
BATCH = 16


def splits_of(vocabulary):
    """All merges that make an entry of two others, in order of what they make.

    The real model's file has this form (2.1 merges an entry); training leaves one merge an entry.
    """
    out = []
    for whole, _ in sorted(vocabulary.items(), key=lambda entry: entry[1]):
        pairs = [(whole[:i], whole[i:]) for i in range(1, len(whole))]
        known = [pair for pair in pairs if pair[0] in vocabulary and pair[1] in vocabulary]
        out.extend(sorted(known, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]])))
    return out


def trained_tokenizer(documents, entries, work):
    """Path of a tokenizer.json with `entries` base entries, trained on `documents` unless that was done before."""
    digest = hashlib.sha256(MODEL_FILE.read_bytes() + tokenizers.__version__.encode())
    for document in documents:
        digest.update(document.encode() + b"\0")
    path = work / f"tokenizer-{entries}-{digest.hexdigest()[:16]}.json"
    if path.exists():
        return path
    size = sum(len(document.encode()) for document in documents)
    print(f"training {entries} entries on {size / 1e6:.1f} MB, once", flush=True)
    pipeline = tokenizers.Tokenizer.from_file(str(MODEL_FILE)).pre_tokenizer
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = pipeline
    trained.train_from_iterator(documents, tokenizers.trainers.BpeTrainer(
        vocab_size=entries, min_frequency=2, show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    vocabulary = json.loads(trained.to_str())["model"]["vocab"]
    if len(vocabulary) != entries:
        raise SystemExit(f"training gave {len(vocabulary)} entries, {entries} are needed: too little text is installed")
    file = json.loads(MODEL_FILE.read_text())
    first_added = len(file["model"]["vocab"])
    file["model"]["vocab"] = vocabulary
    file["model"]["merges"] = splits_of(vocabulary)
    for token in file["added_tokens"]:
        token["id"] += entries - first_added
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(file, ensure_ascii=False))
    unfinished.rename(path)
    return path


def hostile_texts():
    """Text that hardly repeats: name -> documents."""
    chance = random.Random(20261201)
    # Unassigned ones too: which are letters depends on the Unicode version.
    characters = [chr(c) for c in range(1, 0x33480) if not 0xD800 <= c < 0xE000]

    def documents(line):
        out = []
        while sum(map(len, out)) < HOSTILE_BYTES:
            out.append(b"".join(line() + b"\n" for _ in range(200)))
        return [document.decode() for document in out]

    return {
        "random characters": documents(lambda: "".join(chance.choices(characters, k=40)).encode()),
        "random hex": documents(lambda: chance.randbytes(32).hex().encode()),
        "random base64": documents(lambda: base64.b64encode(chance.randbytes(57))),
    }


class Quartet:
    """Passes of quartet-tokenizer-bench over some documents."""

    def __init__(self, program, tokenizer, documents, work):
        text, self.ids_file = work / "documents", work / "ids"
        text.write_bytes(b"\0".join(document.encode() for document in documents))
        self.process = subprocess.Popen([program, "--tokenizer", tokenizer, "--documents", text, "--ids", self.ids_file],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._line()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def _line(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"quartet-tokenizer-bench ended with {self.process.wait()}")
        return line

    def seconds(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self._line().split()[1])

    def ids(self):
        """The last pass's, by document."""
        flat, out, at = array.array("i", self.ids_file.read_bytes()), [], 0
        while at < len(flat):
            out.append(flat[at + 1:at + 1 + flat[at]].tolist())
            at += 1 + flat[at]
        return out


class HuggingFace:
    """The same with a tokenizer of its own, so that its cache knows only these documents' words."""

    def __init__(self, tokenizer, documents):
        self.tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer))
        self.batches = [documents[i:i + BATCH] for i in range(0, len(documents), BATCH)]

    def _encode(self, batch):
        # The form that leaves out offsets, which Quartet does not compute either.
        return self.tokenizer.encode_batch_fast(batch, add_special_tokens=False)

    def seconds(self):
        begin = time.process_time()
        for batch in self.batches:
            self._encode(batch)
        return time.process_time() - begin

    def ids(self):
        return [encoded.ids for batch in self.batches for encoded in self._encode(batch)]


def first_difference(name, ours, theirs, other):
    """A line about the first id that differs, or nothing."""
    if len(ours) != len(theirs):
        return f"{name}: {len(ours)} documents came back, {len(theirs)} were given"
    for number, (left, right) in enumerate(zip(ours, theirs)):
        if left != right:
            at = next((i for i, (a, b) in enumerate(zip(left, right)) if a != b), min(len(left), len(right)))
            show = [[other.id_to_token(i) for i in ids[max(0, at - 3):at + 4]] for ids in (left, right)]
            return f"{name}: document {number}, token {at}: Quartet {show[0]}, Hugging Face {show[1]}"
    return None


def measure(name, documents, tokenizer, args):
    """One row: (cells, difference or nothing, ratio)."""
    theirs = HuggingFace(tokenizer, documents)
    with Quartet(args.bin / "quartet-tokenizer-bench", tokenizer, documents, args.work) as ours:
        ours.seconds()  # the first pass of each meets cold memory, and fills the other's cache
        ids = ours.ids()
        difference = first_difference(name, ids, theirs.ids(), theirs.tokenizer)
        times = [(ours.seconds(), theirs.seconds()) for _ in range(args.repeats)]
    megabytes = sum(len(document.encode()) for document in documents) / 1e6
    rates = [[megabytes / seconds for seconds in side] for side in zip(*times)]
    medians = [statistics.median(side) for side in rates]
    ratio = medians[0] / medians[1]
    shown = [f"{median:.1f} ({min(side):.1f}-{max(side):.1f})" for median, side in zip(medians, rates)]
    cells = (name, f"{megabytes:.2f}", str(len(documents)), str(sum(map(len, ids))), *shown, f"{ratio:.2f}",
             "differ" if difference else "equal")
    return cells, difference, ratio


def print_row(cells):
    widths = (18, 5, 9, 8, 18, 18, 5, 6)
    print("  ".join(cell.ljust(width) if column == 0 else cell.rjust(width)
                    for column, (cell, width) in enumerate(zip(cells, widths))), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=SOURCE / "build/cpu/bin", help="folder of the built programs")
    parser.add_argument("--work", type=pathlib.Path, default=SOURCE / "build/tokenizer_bench",
                        help="folder for the trained vocabulary and the text")
    parser.add_argument("--entries", type=int, default=VOCABULARY, help="base entries of the vocabulary to train")
    parser.add_argument("--tokenizer", type=pathlib.Path, help="a tokenizer.json to use in place of a trained one")
    parser.add_argument("--repeats", type=int, default=7, help="measured passes of each library over each text")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)

    texts, training = {}, []
    for kind in tokenizer_corpus.KINDS:
        texts[kind.name], more = tokenizer_corpus.collect(kind)
        training += more
    mixed = [document for documents in texts.values() for document in documents]
    random.Random(1).shuffle(mixed)  # a server's requests do not come sorted by language
    texts = {"mixed": mixed, **texts, **hostile_texts()}
    tokenizer = args.tokenizer or trained_tokenizer(training, args.entries, args.work)

    model = json.loads(tokenizer.read_text())["model"]
    print(f"tokenizers {tokenizers.__version__}, {len(model['vocab'])} entries, {len(model['merges'])} merges; MB/s of "
          f"processor time on one core, median (least-most) of {args.repeats} passes")
    print_row(("text", "MB", "documents", "tokens", "Quartet MB/s", "Hugging Face MB/s", "ratio", "ids"))
    differences, slower = [], []
    for name, documents in texts.items():
        cells, difference, ratio = measure(name, documents, tokenizer, args)
        print_row(cells)
        if difference:
            differences.append(difference)
        if ratio < 1:
            slower.append(name)
    for line in differences:
        print(line)
    if slower:
        print(f"Quartet is slower on: {', '.join(slower)}")
    return 1 if differences or slower else 0


if __name__ == "__main__":
    sys.exit(main())
