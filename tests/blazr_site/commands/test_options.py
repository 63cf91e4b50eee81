"""Options that commands share: each that sets a variable sets one of the settings."""

from __future__ import annotations

import argparse

from blazr_site.commands.options import OPTION_OF, add_serve_arguments
from blazr_site.settings import read


def test_every_variable_of_an_option_is_one_of_the_settings():
    assert OPTION_OF.keys() <= read.KNOWN.keys()
    parser = argparse.ArgumentParser()
    add_serve_arguments(parser)
    destinations = {action.dest for action in parser._actions if action.dest.startswith("BLAZR_")}
    assert destinations == OPTION_OF.keys()
