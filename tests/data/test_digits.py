"""Users who like one digit: exact counts, disjoint parts, and faults in MNIST's files."""

import gzip
import struct
from dataclasses import replace

import numpy as np
import pytest

from homespun.core.errors import DataError, SettingsError
from homespun.data import load_federation
from homespun.data.corpus_report import inspect_corpus
from homespun.data.preferences import EVAL, TEST, TRAIN
from homespun.data.splits import split, withhold


def digits(**settings):
    return load_federation("digits", settings=settings)


@pytest.fixture(scope="module")
def small():
    return digits(users=40)


def test_a_user_likes_one_digit_and_has_as_many_of_all_others(small):
    for user in range(0, 40, 7):
        some, group = small.examples(user), int(small.group(user))
        assert np.array_equal(some.labels == 1, some.contexts == group)
        for part, count in ((TRAIN, 20), (EVAL, 4), (TEST, 10)):
            mine = some.labels[some.parts == part]
            assert (len(mine), mine.sum()) == (count, count // 2)
        assert some.images.shape == (34, 28, 28) and np.asarray(some.images).dtype == np.uint8
        assert np.all(some.authors == user) and np.all(some.groups == group)


def test_populations_have_the_shares_of_the_paper(small):
    assert np.bincount(small.group_of).tolist() == [4] * 10
    counts = np.bincount(digits(users=200, balance="imbalanced").group_of)
    assert counts.tolist() == [50, 30, 20, 20, 20, 20, 10, 10, 10, 10]


def test_no_user_trains_on_a_test_image_unless_overlap_is_set():
    def images(federation, *parts):
        users = [federation.examples(user) for user in range(len(federation.users))]
        return {image.tobytes() for some in users for image in np.asarray(some.images)[np.isin(some.parts, parts)]}

    apart, overlapping = digits(users=60), digits(users=60, overlap=True)
    assert not images(apart, TRAIN, EVAL) & images(apart, TEST)
    assert images(overlapping, TRAIN) & images(overlapping, TEST)
    own = overlapping.examples(3)
    trained = {image.tobytes() for image in np.asarray(own.images[own.parts != TEST])}
    assert not trained & {image.tobytes() for image in np.asarray(own.images[own.parts == TEST])}


def test_the_same_settings_give_the_same_users_and_another_seed_gives_others(small):
    again, other = digits(users=40), digits(users=40, seed=1)
    assert small.fingerprint == again.fingerprint != other.fingerprint
    assert np.array_equal(small.examples(5).images, again.examples(5).images)
    assert not np.array_equal(small.examples(5).images, other.examples(5).images)


def test_the_parts_of_the_corpus_take_precedence_over_fractions(small):
    parts = split(small.examples(2), seed=0, user="anybody", fractions=(0.1, 0.1, 0.8))
    assert [len(part) for part in parts] == [20, 4, 10]
    assert np.all(parts.test.parts == TEST)


def test_groups_and_images_stay_with_a_subset(small):
    _, some = withhold(small, share=0.2, seed=0)
    found = some.examples(0)
    assert found.images is not None and np.all(found.groups == int(some.group(0)))


def test_a_prototypical_user_is_not_in_the_population(small):
    made_up = small.prototypical(3)
    assert len(made_up) == 20 and np.all(made_up.groups == 3) and np.all(made_up.parts == TRAIN)
    assert np.array_equal(made_up.labels == 1, made_up.contexts == 3)


def test_fewer_users_than_sub_populations_are_refused():
    with pytest.raises(SettingsError, match="10 sub-populations need at least 10 users"):
        digits(users=9)


def test_more_images_of_a_kind_than_there_are_is_refused():
    with pytest.raises(DataError, match="for training a user needs 202 images of one kind"):
        digits(users=20, train=400)
    with pytest.raises(DataError, match="for testing a user needs 100 images of one kind"):
        digits(users=20, test=200)


def write_idx(path, array, *, magic=None, cut=0):
    header = struct.pack(f">{1 + array.ndim}I", magic or 0x0800 + array.ndim, *array.shape)
    data = header + array.astype(np.uint8).tobytes()
    data = data[: len(data) - cut]
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


@pytest.fixture
def folder(tmp_path):
    draw = np.random.default_rng(0)
    for prefix, count in (("train", 300), ("t10k", 200)):
        write_idx(tmp_path / f"{prefix}-images-idx3-ubyte.gz", draw.integers(0, 256, (count, 28, 28)))
        write_idx(tmp_path / f"{prefix}-labels-idx1-ubyte", np.arange(count) % 10)
    return tmp_path


def test_mnist_is_read_gzipped_or_not(folder):
    found = digits(folder=str(folder), users=20)
    assert len(found.training.images) == 300 and len(found.testing.images) == 200
    assert found.examples(0).images.shape == (34, 28, 28)


def test_every_fault_of_a_folder_is_named(folder):
    (folder / "train-images-idx3-ubyte.gz").unlink()
    write_idx(folder / "train-labels-idx1-ubyte", np.arange(300) % 10, magic=0x0D01)
    write_idx(folder / "t10k-images-idx3-ubyte.gz", np.zeros((200, 28, 28)), cut=5)
    whole = (folder / "t10k-labels-idx1-ubyte").read_bytes()
    (folder / "t10k-labels-idx1-ubyte").unlink()
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(whole)[:-20])
    with pytest.raises(DataError) as caught:
        digits(folder=str(folder), users=20)
    said = str(caught.value)
    assert "no train-images-idx3-ubyte" in said and "train-labels-idx1-ubyte: not an IDX file" in said
    assert "156795 numbers, but its header says 156800" in said
    assert "t10k-labels-idx1-ubyte.gz: damaged or truncated" in said


def test_a_missing_folder_and_an_unequal_pair_are_refused(folder, tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        digits(folder=str(tmp_path / "nowhere"), users=20)
    write_idx(folder / "t10k-labels-idx1-ubyte", np.arange(199) % 10)
    with pytest.raises(DataError, match="200 images but 199 labels"):
        digits(folder=str(folder), users=20)


def test_counting_labels_reads_no_image(small):
    class Unread:
        shape, dtype = small.training.images.shape, np.uint8

        def __getitem__(self, rows):
            raise AssertionError("an image was read")

    unread = replace(small, training=replace(small.training, images=Unread()))
    assert inspect_corpus(unread).own_majority_share == 0.5
    with pytest.raises(AssertionError, match="an image was read"):
        np.asarray(unread.examples(0).images)
