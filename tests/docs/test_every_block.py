"""Every fenced block of the pages is run by a test: this is the list of them."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.docs.blocks import Block, blocks

TESTS: Final = Path(__file__).parents[1]
LANGUAGES: Final = {"python", "sh", "toml", "json"}

EVERY: Final = 0
"""In place of a number: the test runs all blocks of that page and language that there are."""

RUN_BY: Final[dict[str, dict[tuple[str, str], tuple[int, ...]]]] = {
    "docs/test_code_blocks.py::test_a_configuration_is_accepted": {
        ("*.md", "toml"): (EVERY,),
    },
    "docs/test_json_on_pages.py::test_a_line_of_the_log": {("logs.md", "json"): (1,)},
    "docs/test_json_on_pages.py::test_a_trace": {("tracing.md", "json"): (1,)},
    # Python
    "examples/test_library_page.py::test_a_program_prints_what_the_page_says": {
        ("asyncio.md", "python"): (EVERY,),
        ("library.md", "python"): (EVERY,),
        ("trio.md", "python"): (EVERY,),
    },
    "transports/nats/test_page.py::test_a_program_prints_what_the_page_says": {
        ("nats.md", "python"): (1, 2),
    },
    "examples/test_queues_example.py::test_it_prints_what_the_page_says": {
        ("queues.md", "python"): (1,),
    },
    "docs/test_clients.py::test_a_program_of_rabbitmq_publishes": {
        ("rabbitmq.md", "python"): (1,),
    },
    "docs/test_clients.py::test_a_reader_reads_the_batch_of_a_writer": {
        ("range-readers.md", "python"): (1,),
        ("sinks.md", "python"): (1,),
    },
    "docs/test_fastapi_page.py::test_both_programs_of_the_page": {
        ("fastapi.md", "python"): (1, 2),
    },
    "docs/test_fragments.py::test_shares_and_a_rate_of_fairness": {
        ("fairness.md", "python"): (1, 2),
    },
    "docs/test_fragments.py::test_a_limit_in_seconds": {("latency-limit.md", "python"): (1,)},
    "docs/test_fragments.py::test_a_subscription_with_patience": {("patience.md", "python"): (1,)},
    "docs/test_fragments.py::test_an_authenticator_of_your_own": {("security.md", "python"): (1,)},
    "docs/test_fragments.py::test_a_tracer_in_a_program": {("tracing.md", "python"): (1, 2)},
    "docs/test_fragments.py::test_a_virtual_host": {("queues.md", "python"): (2,)},
    "docs/test_fragments.py::test_a_reader_with_a_password_over_tls": {
        ("range-readers.md", "python"): (2,),
    },
    "pipeline/source/test_docs.py::test_the_first_example_works_as_it_stands": {
        ("spark.md", "python"): (1,),
    },
    "pipeline/test_pages.py::test_a_query_that_writes_a_batch_and_a_job": {
        ("spark.md", "python"): (2, 3, 4, 5),
    },
    "pipeline/test_pages.py::test_a_journal_is_read": {("ledger.md", "python"): (1, 2)},
    # Commands
    "docs/test_commands.py::test_the_commands_of_a_page_work": {
        ("alerts.md", "sh"): (EVERY,),
        ("health.md", "sh"): (EVERY,),
        ("http.md", "sh"): (EVERY,),
    },
    "docs/test_commands.py::test_a_move_from_mosquitto": {("mosquitto.md", "sh"): (EVERY,)},
    "docs/test_commands.py::test_the_files_of_a_relay": {("files.md", "sh"): (1, 2)},
    "docs/test_commands.py::test_a_relay_with_tls_passwords_and_an_acl": {
        ("secure-relay.md", "sh"): (EVERY,),
    },
    "docs/test_commands.py::test_a_running_relay_is_changed": {("operate.md", "sh"): (1, 2, 3, 4)},
    "docs/test_commands.py::test_a_page_installs_what_there_is": {
        ("fastapi.md", "sh"): (1,),
        ("trio.md", "sh"): (1,),
    },
    "docs/test_commands.py::test_the_commands_that_make_a_service": {("service.md", "sh"): (1,)},
    "docs/test_cluster_page.py::test_a_nats_server_to_try_the_client_with": {
        ("nats.md", "sh"): (1,),
    },
    "docs/test_cluster_page.py::test_two_relays_are_one": {("cluster.md", "sh"): (1,)},
    "docs/test_cluster_page.py::test_workers": {("cluster.md", "sh"): (2,)},
    "docs/test_cluster_page.py::test_a_store_in_jetstream": {("cluster.md", "sh"): (3,)},
    "docs/test_cluster_page.py::test_a_cluster_to_try": {("cluster.md", "sh"): (4,)},
    "docs/test_first_day.py::test_the_day_from_an_empty_environment": {
        ("first-day.md", "sh"): (EVERY,),
    },
}
"""The blocks that a test runs, by page and language, as numbers from 1."""


def which_run(block: Block) -> list[str]:
    """Return the tests that run a block."""
    return [
        test
        for test, of_pages in RUN_BY.items()
        for (page, language), numbers in of_pages.items()
        if page in (block.page, "*.md")
        and language == block.language
        and (block.number in numbers or EVERY in numbers)
    ]


CHECKED: Final = [block for block in blocks() if block.language in LANGUAGES]


@pytest.mark.parametrize(
    "block", CHECKED, ids=[f"{each.page}-{each.language}-{each.number}" for each in CHECKED]
)
def test_a_test_runs_it(block: Block) -> None:
    assert which_run(block), f"no test runs this; write one and list it here:\n{block.code}"


def test_no_block_is_listed_that_is_not_there() -> None:
    there = {(each.page, each.language, each.number) for each in CHECKED}
    listed = [
        (page, language, number or 1)
        for of_pages in RUN_BY.values()
        for (page, language), numbers in of_pages.items()
        for number in numbers
        if page != "*.md"
    ]
    assert set(listed) <= there
    assert max(Counter(listed).values()) == 1


@pytest.mark.parametrize("test", RUN_BY)
def test_a_listed_test_is_there_and_names_its_pages(test: str) -> None:
    file, name = test.split("::")
    text = (TESTS / file).read_text("utf-8")
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert name in {each.name for each in ast.walk(ast.parse(text)) if isinstance(each, functions)}
    for page, _ in RUN_BY[test]:
        assert page in text
