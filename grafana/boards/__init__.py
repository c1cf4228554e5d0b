"""Penstock's Grafana dashboards, as code: a module for each, `parts` has what they are made of.

`python grafana/build.py` writes them to grafana/dashboards/ as JSON, which is committed.
"""
