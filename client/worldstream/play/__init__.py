"""Walks a camera through a world by keys: `worldstream play`.

`keys` and `script` say what is pressed, `half_blocks` and `playback` what is drawn and when; `keyboard`, `canvas`
and `screen` are the terminal; `player` makes requests of keys and counts; `run` puts them together.
"""
