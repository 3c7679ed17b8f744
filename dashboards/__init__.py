"""Grafana dashboards and Prometheus rules, as code.

`python -m dashboards` writes the files that are committed beside this; `--check` says whether they
are up to date. This folder is not part of the installed package.
"""
