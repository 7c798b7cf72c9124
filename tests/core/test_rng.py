"""Named streams: the same for the same name, unrelated for others."""

from random import Random

from dispatcher.core.rng import stream


def test_a_stream_is_the_twister_seeded_by_seed_and_name():
    assert stream(3, "work/1").random() == Random("3/work/1").random()


def test_names_and_seeds_part_streams():
    first = [stream(seed, name).random() for seed in (1, 2) for name in ("arrivals", "work/0", "work/1", "policy")]
    assert len(set(first)) == len(first)
