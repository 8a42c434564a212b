"""The table of docker/README.md is what `worldstream plan` says."""

from __future__ import annotations

import re
from pathlib import Path

from worldstream.sizing.command import make_plan
from worldstream.sizing.plan import tell_bytes

README = Path(__file__).parents[2] / "docker" / "README.md"
ROW = re.compile(r"^\| `((?:embedded|lingbot).+)` \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)


def test_the_sizing_table_is_what_the_plan_says() -> None:
    section = README.read_text(encoding="utf-8").partition("## Sizing\n")[2].partition("\n## ")[0]
    rows = ROW.findall(section)
    assert len(rows) == 10

    for arguments, *told in rows:
        config, *options = arguments.split()
        assert [option for option in options[::2] if option not in ("--set", "--memory")] == []
        values = dict.fromkeys(options[::2], "")
        settings = [value for name, value in zip(options[::2], options[1::2], strict=True) if name == "--set"]
        values |= dict(zip(options[::2], options[1::2], strict=True))

        plan = make_plan(config, settings, values["--memory"], None)

        assert told == [tell_bytes(plan.fixed_bytes), tell_bytes(plan.session_bytes), str(plan.sessions)], arguments
