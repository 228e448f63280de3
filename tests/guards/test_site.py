"""What is done to the site after it was built."""

import json
from pathlib import Path

import pytest
from tests import site

BLOCK = (
    '<div class="highlight"><pre><span></span><code><span class="gp">$ </span>hmc<span class="w"> </span>levels\n'
    '<span class="go">full</span>\n<span class="gp">$ </span>hmc<span class="w"> </span>serve<span class="w"> </span>'
    "&quot;a b&quot;<span> </span>\\\n      --port 1\n</code></pre></div>"
)


def test_a_block_is_copied_without_prompts_and_without_what_is_printed() -> None:
    page = site.with_commands(f"<p>x</p>{BLOCK}<p>y</p>")
    assert 'data-copy="hmc levels&#10;hmc serve &quot;a b&quot; \\&#10;      --port 1"' in page
    assert page.replace(page[page.index(" data-copy") : page.index('"><pre>') + 1], "") == f"<p>x</p>{BLOCK}<p>y</p>"


def test_other_blocks_are_copied_as_they_are() -> None:
    block = '<div class="highlight"><pre><span></span><code>print(1)\n</code></pre></div>'
    assert site.with_commands(block) == block


def test_the_search_leaves_out_the_archive_and_the_reference_of_python(tmp_path: Path) -> None:
    places = ("index.html", "api.html#hmc.serving", "decisions/0001.html", "questions.html#can-i-use-a-gpu")
    (tmp_path / "search.json").write_text(
        json.dumps({"config": {}, "items": [{"location": place} for place in places]})
    )
    (tmp_path / "index.html").write_text(BLOCK)
    site.main(tmp_path)
    left = json.loads((tmp_path / "search.json").read_text())
    assert left == {"config": {}, "items": [{"location": "index.html"}, {"location": "questions.html#can-i-use-a-gpu"}]}


def test_a_builder_that_writes_other_files_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "search.json").write_text(json.dumps({"items": [{"location": "index.html"}]}))
    (tmp_path / "index.html").write_text("<pre>$ hmc levels</pre>")
    with pytest.raises(SystemExit, match="the builder writes other files than it did"):
        site.main(tmp_path)
