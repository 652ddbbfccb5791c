"""Sentences in ten scripts, made up of random words: tokenizers see letters, and no sense."""

import numpy as np

SCRIPTS = {
    "latin": "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZäöüßéèñçøåİŐ",
    "greek": "αβγδεζηθικλμνξοπρσςτυφχψωάέΑΒΓΔΣΩ",
    "cyrillic": "абвгдежзийклмнопрстуфхцчшщъыьэюяАБВГДЁЖ",
    "hebrew": "אבגדהוזחטיכלמנסעפצקרשת",
    "arabic": "ابتثجحخدذرزسشصضطظعغفقكلمنهوي",
    "devanagari": "अआइईउऊकखगघचछजझटठडढतथदधनपफबभमयरलवशषसहािीुूेैोौ्",
    "thai": "กขคงจฉชซญดตถทธนบปผพฟภมยรลวสหอะาิีุู",
    "han": "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可你年生",
    "kana": "あいうえおかきくけこさしすせそたちつてとなにぬねのアイウエオカキクケコガギグ",
    "hangul": "가나다라마바사아자차카타파하고노도로모보소오조구누두",
}
BETWEEN = (*"   ", "  ", "\t", "\n", ", ", ". ", "! ", "'s ", *"-_7…#(", " & ", " 42 ", " 🐈 ", ") ")


def sentences(count, seed=0):
    """`count` sentences, each of one script, in turn: words of 1 to 9 letters with spaces and signs between them."""
    random = np.random.default_rng(seed)
    alphabets = [list(letters) for letters in SCRIPTS.values()]
    made = []
    for n in range(count):
        letters = alphabets[n % len(alphabets)]
        words = ("".join(random.choice(letters, random.integers(1, 10))) for _ in range(random.integers(0, 15)))
        made.append("".join(word + BETWEEN[random.integers(len(BETWEEN))] for word in words))
    return made
