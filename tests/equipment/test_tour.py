"""The tours of pages read what a reader reads, and take no mark that they do not know."""

import pytest
from support.suite.tour import Block, blocks

PAGE = r"""# One

```sh
# a comment and no heading
run this
```

<!-- tour: exit 1 -->
```sh
fails
```

1. In a list.

   ```sh
   one '\n'
   two
   ```

```yaml
# no heading either
```

## Two

<!-- tour: not run: it needs a cloud -->
```sh
helm install
```
"""


def test_blocks_of_shell_are_read_in_order_with_their_headings_and_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert list(blocks(str(page))) == [
        Block("One", "# a comment and no heading\nrun this\n"),
        Block("One", "fails\n", code=1),
        Block("One", "one '\\n'\ntwo\n"),
        Block("Two", "helm install\n", not_run="it needs a cloud"),
    ]


def test_an_unknown_mark_is_refused(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace("exit 1", "skip"))
    with pytest.raises(AssertionError, match="'skip'"):
        list(blocks(str(page)))
