"""docs/sizing.md says what the code says."""

from pathlib import Path

import pytest
from pagoda_sizing.generate import main
from pagoda_sizing.tables import BEGIN, END, tables, updated

DOCUMENT = Path(__file__).parents[3] / "docs" / "sizing.md"


def test_the_generated_region_is_up_to_date():
    text = DOCUMENT.read_text()
    assert updated(text) == text, "run: python -P -m pagoda_sizing.generate docs/sizing.md"


def test_only_the_region_between_the_marks_is_written():
    assert updated(f"before\n{BEGIN}\nold\n{END}\nafter\n") == f"before\n{BEGIN}\n\n{tables()}\n{END}\nafter\n"


@pytest.mark.parametrize("text", ["", BEGIN, END, f"{END}{BEGIN}", f"{BEGIN}{END}{BEGIN}"])
def test_a_document_without_its_marks_is_refused(text):
    with pytest.raises(ValueError, match="the document needs one line"):
        updated(text)


def test_the_generator_writes_and_its_check_only_looks(tmp_path, capsys):
    document = tmp_path / "sizing.md"
    document.write_text(f"{BEGIN}\nold\n{END}\n")
    assert main([str(document), "--check"]) == 1
    assert "old" in document.read_text()
    assert main([str(document)]) == 0
    assert main([str(document), "--check"]) == 0
    assert "out of date" in capsys.readouterr().err
