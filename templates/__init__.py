"""Jinja2 templates with their style and script: data of trnprof.render, which is the only reader of this folder."""
