"""docs/evidence.md: what is measured for it, and how the page is made of that.

A module for each section, with what is needed to measure it and to say what came of it; `_section`
says what a section is, `_sections` which there are, `_data` what is kept of them, `_page` how the
page is put together, `_plot` and `_text` what their figures and tables have in common.

    python -m benchmarks.evidence                      # all of it, less than half an hour
    python -m benchmarks.evidence --only fanout,stuck  # these; the others stay as they were
    python -m benchmarks.evidence --render             # the page alone, from docs/data/evidence/
"""
