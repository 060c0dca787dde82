"""WordPiece as BERT's paper has it, in plain Python: an oracle for the tokenizer of the experiments."""

import unicodedata


def pieces(text, vocabulary):
    """[CLS], the longest known pieces of every word from its left, [SEP]; unknown words are [UNK]."""
    found = ["[CLS]"]
    for word in words(text):
        parts, start = [], 0
        while start < len(word) and len(word) <= 100:
            ends = range(len(word), start, -1)
            names = (("##" if start else "") + word[start:end] for end in ends)
            known = next((name for name in names if name in vocabulary), None)
            if known is None:
                break
            parts.append(known)
            start += len(known) - 2 * (start > 0)
        found += parts if start == len(word) else ["[UNK]"]
    return [vocabulary[piece] for piece in (*found, "[SEP]")]


def words(text):
    """Lower case without accents, cut at spaces, at signs and around ideographs."""
    out = [""]
    for letter in unicodedata.normalize("NFD", "".join(plain(x) for x in text).lower()):
        kind = unicodedata.category(letter)
        if kind == "Mn":
            continue
        if letter == " ":
            out.append("")
        elif kind.startswith("P") or (letter.isascii() and not letter.isalnum()) or ideograph(letter):
            out += [letter, ""]
        else:
            out[-1] += letter
    return [word for word in out if word]


def plain(letter):
    """Spaces of all kinds are one; what is not printed goes."""
    if letter in "\t\n\r" or unicodedata.category(letter) == "Zs":
        return " "
    return "" if letter in "\0\ufffd" or unicodedata.category(letter)[0] == "C" else letter


def ideograph(letter):
    at = ord(letter)
    return (
        0x4E00 <= at <= 0x9FFF or 0x3400 <= at <= 0x4DBF or 0xF900 <= at <= 0xFAFF or 0x20000 <= at <= 0x2FA1F
    )
