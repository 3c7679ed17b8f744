"""What to look at: Grafana dashboards and Prometheus rules, as code.

`python -m dashboards` writes the files that are committed beside this; `--check` says whether they
are what it would write. Not part of the package that is installed.
"""
