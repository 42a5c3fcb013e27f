import bz2

from homespun.pretraining import cleaning

SENTENCE = "The clerk of the council reads a letter to the miller."


def test_prose_is_distinguished_from_code_tables_and_headings():
    assert cleaning.is_prose(SENTENCE)
    assert not cleaning.is_prose("Chapter Twelve of the Book")  # no end
    assert not cleaning.is_prose("Too short it is.")
    assert not cleaning.is_prose("for (i = 0; i < n; i++) { sum += a[i]; } return the sum of it.")
    assert not cleaning.is_prose("1.0 22 31 4 5.5 60 71 8 was measured.")


def test_quotation_marks_are_straight_and_spaces_single():
    assert cleaning.plain("  “It’s\n  late…” ") == '"It\'s late..."'


def test_html_gives_paragraphs_without_code_and_headings():
    page = (
        f"<head><title>T</title></head><h1>One</h1><p>{SENTENCE}</p><pre>x = 1</pre><ul><li>An <b>item</b>.</li></ul>"
    )
    assert [one for one in cleaning.from_html(page.encode()) if one.strip()] == [SENTENCE, "An item."]


def test_citations_in_brackets_are_left_out():
    (found,) = filter(
        None, cleaning.from_html_with_citations(b"<p>So it was. [<b>Works</b>, vol. 2, p. 3] And on.</p>")
    )
    assert found == "So it was. And on."


def test_wikipedia_links_keep_their_words_and_templates_go():
    markup = (
        "<text>'''Ada''' {{b|{{c}}}} was a [[mathematician|thinker]]&lt;ref>x&lt;/ref> of [[note]].\n== End ==</text>"
    )
    (found,) = cleaning.from_wikipedia(bz2.compress(markup.encode()))
    assert cleaning.plain(found) == "Ada was a thinker of note."


def test_examples_are_taken_from_glosses():
    line = '00001 03 n 01 gate 0 000 | a way in; "the gate was open all night"; "a gate"'
    assert list(cleaning.from_glosses(line.encode())) == ["The gate was open all night."]
