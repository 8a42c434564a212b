import numpy as np
from worldmodel.prompt import HashedWords


def test_a_word_has_the_same_vector_wherever_it_stands():
    words = HashedWords(4, 16)
    one, two = words.encode("snow at night"), words.encode("Night")
    assert one.shape == (3, 16)
    assert np.array_equal(one[2], two[0])


def test_other_words_have_other_vectors():
    day, night = HashedWords(4, 64).encode("day night")
    assert abs(day @ night) / 64 < 0.5


def test_a_vocabulary_passes_over_what_it_does_not_know():
    words = HashedWords(4, 16, ("day", "night"))
    assert np.array_equal(words.encode("a DAY in the park"), HashedWords(4, 16).encode("day"))


def test_a_prompt_without_words_is_empty():
    assert HashedWords(4, 16).encode("  ... ").shape == (0, 16)


def test_words_beyond_the_length_are_cut():
    assert HashedWords(2, 16).encode("a b c").shape == (2, 16)


def test_any_unicode_is_taken():
    assert HashedWords(8, 16).encode("Ein Garten im Frühling 🌸 庭園").shape == (5, 16)
