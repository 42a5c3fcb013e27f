import zipfile

import pytest

from homespun.core.errors import DataError, UnknownNameError
from homespun.pretraining.packages import Package, fetch_files
from homespun.pretraining.sources import SOURCES, evaluated_sentences, read_source, read_user_file, select_sources


def test_every_source_has_a_licence_a_version_and_its_own_name():
    assert len({source.name for source in SOURCES}) == len(SOURCES)
    assert all(source.licence and source.package.version and source.weight > 0 for source in SOURCES)


def test_no_message_of_an_evaluated_president_is_a_source():
    (before,) = [source for source in SOURCES if source.name == "sotu-before-1913"]
    trained = set(read_source(before, cache=None).paragraphs)
    assert len(trained) > 9000
    assert trained.isdisjoint(sentence for sentence in evaluated_sentences() if len(sentence.split()) > 12)
    assert not any("Mr. Speaker, Mr. Vice President" in paragraph for paragraph in trained)


def test_an_unknown_source_is_named_with_the_nearest():
    assert len(select_sources(["foldoc"])) == len(SOURCES) - 1
    with pytest.raises(UnknownNameError, match="Did you mean 'foldoc'"):
        select_sources(["foldock"])


def test_a_package_that_cannot_be_downloaded_is_named_with_its_source(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (source,) = [source for source in SOURCES if source.name == "anarchist-faq"]
    with pytest.raises(
        DataError, match=r"anarchist-faq: package anarchism .*apt-get is not installed.*--without anarchist-faq"
    ):
        read_source(source, tmp_path / "cache")


def test_files_are_read_out_of_a_cached_wheel(tmp_path):
    folder = tmp_path / "pip-books-1.0"
    folder.mkdir()
    with zipfile.ZipFile(folder / "books-1.0-py3-none-any.whl", "w") as wheel:
        for name, content in {"books/b.txt": "two", "books/a.txt": "one", "books/c.py": "code"}.items():
            wheel.writestr(name, content)
    assert fetch_files(Package("pip", "books", "1.0"), tmp_path, files=("books/*.txt",)) == [b"one", b"two"]


def test_a_text_file_that_is_missing_empty_or_not_utf8_is_refused(tmp_path):
    (tmp_path / "empty.txt").write_text(" \n\n \n")
    (tmp_path / "latin.txt").write_bytes("Zürich".encode("latin-1"))
    with pytest.raises(DataError, match=r"missing\.txt: cannot be read: No such file"):
        read_user_file(tmp_path / "missing.txt")
    with pytest.raises(DataError, match=r"empty\.txt: has no text"):
        read_user_file(tmp_path / "empty.txt")
    with pytest.raises(DataError, match=r"latin\.txt: not UTF-8 at byte 1"):
        read_user_file(tmp_path / "latin.txt")
