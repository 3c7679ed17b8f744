"""The documentation: pages in Markdown, and the code that makes a site of them.

`python -m docs` builds the site into build/docs; `python -m docs.options_reference` writes
options.md. This folder is not part of the installed package.
"""
