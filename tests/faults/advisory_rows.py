"""The published holes of other servers and libraries, each with the tests that would fail if blazr had it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Advisory:
    """A published hole.

    Attributes:
        number: As it was published.
        product: What had it.
        flaw: What went wrong there, in one sentence.
        tests: Node ids, below ``tests``.
        reason: Why it can't apply here; needed where there are no tests.
    """

    number: str
    product: str
    flaw: str
    tests: tuple[str, ...] = ()
    reason: str = ""


CONSTRUCTS = "checks/test_constructs.py::test_the_project_has_none"
ENTRIES = "inference/transport/test_keys.py::test_pickles_in_entries_are_bytes"
MESSAGES = "blazr_site/test_celery.py::test_pickled_messages_are_refused_unread"
PICKLES = "faults/test_artefacts.py::test_f50_pickles"
STATES = "inference/llm/test_state_header.py::test_hostile_files_are_one_line"
FIELDS = "inference/dialects/test_refusals.py::test_fields_by_which_other_servers_were_taken_over_do_not_exist"
ADAPTERS = "models_registry/detection/test_adapter_files.py::test_broken_directories_are_refused"
PICTURES = "inference/text/images/test_header.py::test_what_is_no_picture"
CONFIGS = "faults/test_artefacts.py::test_f48_configs"
TEMPLATES = "faults/test_artefacts.py::test_f53_chat_templates"
NO_TEMPLATE = "faults/test_request_contents.py::test_no_endpoint_takes_a_template_of_a_request"
EXPENSIVE = "inference/text/tokenisation/test_chat_template.py::test_expensive_template_fails_within_its_limits"
GRAMMARS = "faults/test_grammar_faults.py::test_f56_grammars_get_a_verdict_in_time_and_memory"
COMPILED = "inference/text/grammars/test_compiler_hostile.py::test_compiled_grammars_are_forgotten"
MEMBERS = "faults/test_request_contents.py::test_wrong_values_of_every_member_are_refused"
DOOR = "inference/values/test_sampling_params.py::test_values_that_ended_other_servers_are_refused_here_too"
ENGINE_DOOR = "inference/engine/test_engine.py::TestDoor"
GGUF = "inference/modelling/gguf/test_container.py::test_hostile_files_are_refused"
GGUF_CUT = "inference/modelling/gguf/test_container.py::test_every_truncation_is_refused"
HEADERS = "faults/test_artefacts.py::test_f46_headers"
DIGESTS = "models_registry/test_received_blobs.py::test_a_digest_is_read_in_both_spellings"
HUB = "models_registry/test_hub.py::test_what_the_hub_states_is_not_trusted"
ACCESS = "inference/api/test_urls_access.py::test_every_route_lets_in_whom_the_table_says"
BODIES = "blazr_site/test_body_limit.py"
SHARED = "Processes of blazr share no memory: what they exchange are values in msgpack and JSON, over Redis and pipes."

ROWS: dict[str, tuple[Advisory, ...]] = {
    "Pickles from sockets, queues and files": (
        Advisory("CVE-2024-11041", "vLLM", "messages of a queue between processes were unpickled",
                 (ENTRIES, CONSTRUCTS)),
        Advisory("CVE-2025-30165", "vLLM", "hosts of a group unpickled what they read from a socket",
                 (ENTRIES, "inference/transport/test_hub.py::test_hub_outlives_garbage_on_its_stream", CONSTRUCTS)),
        Advisory("CVE-2026-3059", "SGLang", "the broker of multimodal generation unpickled what came over the network",
                 (MESSAGES, PICTURES, CONSTRUCTS)),
        Advisory("CVE-2026-3060", "SGLang", "encoders on other hosts sent their states as pickles",
                 (STATES, CONSTRUCTS)),
        Advisory("CVE-2026-14890", "SGLang", "data from outside of the process was unpickled",
                 (MESSAGES, ENTRIES, CONSTRUCTS)),
        Advisory("CVE-2026-15969", "SGLang", "a route without a key unpickled the tensors of a LoRA adapter",
                 (ADAPTERS, ACCESS, CONSTRUCTS)),
        Advisory("CVE-2026-7304", "SGLang", "a member of a request was a pickled function that changes logits",
                 (FIELDS, CONSTRUCTS)),
        Advisory("CVE-2026-86793", "SGLang", "an unpickler with a list of forbidden names was led around it",
                 ("checks/test_constructs.py::test_each_construct_is_found", CONSTRUCTS)),
        Advisory("CVE-2026-93034", "SGLang", "data from outside of the process was unpickled",
                 (MESSAGES, ENTRIES, CONSTRUCTS)),
        Advisory("CVE-2026-26220", "LightLLM", "a WebSocket between servers took pickles",
                 ("inference/test_consumers.py::test_frames_that_are_no_json_object", CONSTRUCTS)),
        Advisory("CVE-2025-32434", "PyTorch", "torch.load ran code also with weights_only",
                 (PICKLES, CONSTRUCTS, "test_security_floors.py::test_the_installed_version_is_not_below_the_floor")),
        Advisory("CVE-2026-24747", "PyTorch", "torch.load wrote past its memory also with weights_only",
                 (PICKLES, CONSTRUCTS, "test_security_floors.py::test_the_installed_version_is_not_below_the_floor")),
        Advisory("CVE-2025-14924", "transformers", "a converter of checkpoints unpickled what it was given",
                 (PICKLES, "models_registry/test_upload_rules.py::test_pickles_are_refused_by_name")),
    ),
    "Code that comes with a model": (
        Advisory("CVE-2026-22807", "vLLM", "auto_map of config.json named code, which was loaded unasked", (CONFIGS,)),
        Advisory("CVE-2026-27893", "vLLM", "trust_remote_code was true whatever the operator had set",
                 (CONFIGS, FIELDS, CONSTRUCTS)),
        Advisory("CVE-2026-41523", "vLLM", "a check was an assertion, which python -O leaves out",
                 ("checks/test_constructs.py::test_asserts_count_where_security_is_decided_only", CONSTRUCTS)),
    ),
    "Chat templates": (
        Advisory("CVE-2024-34359", "llama-cpp-python", "a template of a GGUF file ran code of the interpreter",
                 (TEMPLATES,
            "inference/text/tokenisation/test_sandbox.py::test_a_tokenizer_that_is_not_its_own_cannot_be_loaded")),
        Advisory("CVE-2024-2952", "LiteLLM", "a template of tokenizer_config.json ran code of the interpreter",
                 (TEMPLATES, "inference/host/test_confinement.py::test_files_cannot_be_read_written_or_moved")),
        Advisory("PYSEC-2026-2013", "vLLM", "a template in a request used up the server",
                 (NO_TEMPLATE, FIELDS, EXPENSIVE)),
        Advisory("CVE-2025-62426", "vLLM", "chat_template_kwargs replaced the template's own arguments",
             ("inference/text/tokenisation/test_chat_template.py::test_reserved_template_arguments_are_refused",
              EXPENSIVE)),
        Advisory("CVE-2026-115911", "vLLM", "one template kept the only thread that renders for ever",
                 ("inference/text/tokenisation/test_chat_template.py::test_the_next_request_is_served_after_a_kill",)),
        Advisory("CVE-2026-115918", "vLLM", "a second endpoint took the templates that the first one refuses",
                 (NO_TEMPLATE,)),
    ),
    "Expressions, schemas, grammars": (
        Advisory("CVE-2026-55574", "vLLM", "an expression of a request took any time to compile",
                 (GRAMMARS,
            "inference/text/grammars/test_compiler_hostile.py::test_it_is_refused_in_time_or_followed_within_bounds")),
        Advisory("PYSEC-2026-3933", "vLLM", "the limit of one compiler of grammars was missing at another one",
                 ("inference/dialects/openai/test_grammar_fields.py::test_every_spelling_becomes_a_grammar",
            "inference/api/openai/test_views_structured_output.py::test_one_that_cannot_be_compiled_never_reaches_a_worker",
            "inference/text/grammars/test_constraint_generation.py::test_what_cannot_be_followed_is_refused_with_the_reason")),
        Advisory("CVE-2025-71379", "vLLM", "an expression of the server's own took exponential time",
                 ("checks/test_expressions.py::test_the_project_has_none_but_those_that_are_listed",)),
        Advisory("CVE-2025-29770", "vLLM", "every compiled grammar stayed on the disk", (COMPILED, GRAMMARS)),
        Advisory("GHSA-389x-67px-mjg3", "xgrammar", "every compiled grammar stayed in memory", (COMPILED, GRAMMARS)),
        Advisory("CVE-2026-105757", "vLLM", "an error of a grammar ended the engine",
                 ("inference/engine/sampling/test_token_masks.py::test_a_mask_that_raises_fails_its_request",
                  "inference/engine/sampling/test_token_masks.py::test_what_fails_fails_alone")),
    ),
    "Parameters of requests": (
        Advisory("CVE-2026-34756", "vLLM", "n had no limit, and its copies took all memory", (MEMBERS, DOOR)),
        Advisory("CVE-2026-54235", "vLLM", "NaN and infinity passed the comparisons of a temperature", (MEMBERS, DOOR)),
        Advisory("CVE-2026-114051", "vLLM", "min_tokens ended the engine, and the health check did not notice",
                 (MEMBERS, DOOR, f"{ENGINE_DOOR}::test_bad_parameters",
                  "faults/test_site_faults.py::test_f68_probes_and_counters_tell_the_truth")),
        Advisory("CVE-2026-116173", "vLLM", "a number of logprobs ended the engine", (MEMBERS, DOOR)),
        Advisory("CVE-2026-93840", "vLLM", "ids past the logits changed the rows of other requests",
                 (f"{ENGINE_DOOR}::test_bad_parameters", DOOR)),
        Advisory("CVE-2026-93989", "vLLM", "ids past the logits changed the rows of other requests, another way in",
                 (f"{ENGINE_DOOR}::test_bad_prompts", f"{ENGINE_DOOR}::test_bad_parameters", DOOR,
            "faults/test_request_contents.py::test_values_that_contradict_each_other_or_the_vocabulary_are_refused")),
        Advisory("CVE-2026-21869", "llama.cpp", "a negative n_discard moved the cache to before its memory", (FIELDS,)),
    ),
    "Parsers of files": (
        Advisory("CVE-2024-23605", "llama.cpp", "a number of keys overflowed the size of their array", (GGUF, HEADERS)),
        Advisory("CVE-2024-21802", "llama.cpp", "a number of dimensions led past their array", (GGUF, HEADERS)),
        Advisory("CVE-2024-32878", "llama.cpp", "a file that ends within a key freed memory that was never set",
                 (GGUF_CUT,)),
        Advisory("CVE-2025-53630", "llama.cpp", "sizes of tensors overflowed their sum", (GGUF, HEADERS)),
        Advisory("CVE-2025-49847", "llama.cpp", "the length of a token was cut to 32 bits before it was copied",
            ("inference/text/tokenisation/test_gguf_vocabulary.py::test_a_long_token_is_decoded_whole_or_refused",)),
        Advisory("CVE-2025-52566", "llama.cpp", "a signed and an unsigned number of tokens were compared",
                 ("inference/text/tokenisation/test_length_bounds.py::test_a_long_text_is_refused_by_its_beginning",
                  f"{ENGINE_DOOR}::test_prompts_that_leave_no_room")),
        Advisory("CVE-2026-27940", "llama.cpp", "sizes of tensors overflowed once more, behind the check for it",
                 (GGUF,)),
        Advisory("CVE-2026-33298", "llama.cpp", "dimensions of a tensor overflowed its number of bytes", (GGUF,)),
        Advisory("CVE-2026-7482", "Ollama", "tensors larger than the file read the prompts of others", (GGUF, HEADERS)),
        Advisory("CVE-2025-0317", "Ollama", "an alignment of 0 was a divisor", (GGUF,)),
        Advisory("CVE-2024-8063", "Ollama", "a number of layers of another type was a divisor",
                 ("inference/modelling/gguf/test_architectures.py::test_what_cannot_be_read_is_refused_by_name",)),
        Advisory("CVE-2024-12055", "Ollama", "a broken file ended the server",
                 (GGUF, "models_registry/test_uploads_gguf.py::test_a_false_file_is_refused_with_the_first_piece")),
    ),
    "Paths and archives": (
        Advisory("CVE-2024-37032", "Ollama", "a digest that is none became a path",
                 (DIGESTS, "inference/api/ollama/test_creating.py::test_a_blob_with_another_digest_is_refused")),
        Advisory("CVE-2024-45436", "Ollama", "an archive wrote outside of its directory",
                 ("faults/test_artefacts.py::test_f51_archives",
                  "models_registry/test_wheel_files.py::test_names_that_leave_the_directory_are_refused")),
        Advisory("CVE-2026-7020", "Ollama", "a digest that another server states became a path", (HUB, DIGESTS)),
        Advisory("CVE-2026-103663", "Ollama", "a digest that is none became a path again", (HUB, DIGESTS)),
        Advisory("CVE-2025-44779", "Ollama", "a request deleted files of its choice",
                 ("models_registry/test_services.py::test_deleting_never_touches_registered_paths", HUB,
                  "models_registry/test_hub_reference.py::test_other_texts_are_none")),
        Advisory("CVE-2025-23316", "Triton", "a model's name led to a program",
                 ("models_registry/test_names.py::test_other_names_are_refused",
                  "models_registry/test_storage.py::test_directories_are_private_and_names_are_ours")),
    ),
    "Requests of the server": (
        Advisory("CVE-2025-6242", "vLLM", "an image's URL led to addresses of the server's network",
                 ("inference/text/images/test_parts.py::test_nothing_is_fetched",
                  "faults/test_access_faults.py::test_no_request_makes_the_server_call_another_host")),
        Advisory("CVE-2025-51471", "Ollama", "a challenge had the token sent to another host",
                 ("models_registry/test_hub_files.py::test_the_token_goes_to_no_other_host",)),
        Advisory("CVE-2024-12886", "Ollama", "a compressed reply took all memory",
                 ("models_registry/test_hub_child.py::test_a_reply_that_unpacks_to_anything_ends_the_pull_alone", HUB)),
        Advisory("CVE-2024-28224", "Ollama", "a web page reached the server under a name that was bound to it later",
                 ("inference/access/test_authentication.py::test_a_name_that_was_rebound_to_this_server_is_refused",)),
    ),
    "Control without a key": (
        Advisory("CVE-2025-63389", "Ollama", "models were changed without a key", (ACCESS,)),
        Advisory("CVE-2025-23310", "Triton", "a body in very many chunks ran over the stack",
                 (f"{BODIES}::test_chunks_are_counted_however_many_they_are",)),
        Advisory("CVE-2025-23317", "Triton", "a request to the HTTP server started a shell", (CONSTRUCTS, ACCESS)),
        Advisory("CVE-2025-23319", "Triton", "a request wrote past the memory that processes share",
                 (CONSTRUCTS,), SHARED),
        Advisory("CVE-2025-23320", "Triton", "the error of a large request told the name of shared memory",
                 ("inference/api/test_base.py::test_internal_errors_say_nothing_of_the_inside",
                  "inference/api/test_base.py::test_large_bodies_are_refused_declared_or_not"), SHARED),
        Advisory("CVE-2025-23334", "Triton", "a request read past the memory that processes share",
                 (CONSTRUCTS,), SHARED),
    ),
    "Side channels": (
        Advisory("CVE-2025-46570", "vLLM", "the time of the first token told which prompts others had sent",
                 ("inference/dialects/openai/test_requests.py::test_no_salt_of_one_tenant_is_that_of_another",
                  "inference/engine/prefix_cache/test_cache.py::test_salts_keep_prefixes_apart",
                  "faults/test_load_faults.py::test_f66_the_time_of_a_first_token_tells_nothing_of_other_keys")),
        Advisory("CVE-2026-105756", "vLLM", "a cache_salt ended the engine",
                 ("inference/engine/prefix_cache/test_cache.py::test_no_salt_ends_the_engine",)),
        Advisory("CVE-2026-23996", "fastapi-api-key", "the time of a refusal told which keys exist",
                 ("faults/test_access_faults.py::test_keys_are_nowhere_but_with_their_owner",)),
    ),
    "Django under ASGI": (
        Advisory("CVE-2026-33034", "Django", "a missing or false Content-Length passed the limit of bodies",
                 (f"{BODIES}::test_a_declared_length_over_the_limit_is_refused_unread",
                  f"{BODIES}::test_a_body_that_grows_over_the_limit_is_cut",
                  "test_security_floors.py::test_the_installed_version_is_not_below_the_floor")),
        Advisory("CVE-2026-5766", "Django", "a missing or false Content-Length passed the limit of files in memory",
                 (f"{BODIES}::test_a_file_counts_what_django_keeps_in_memory",
                  "inference/api/openai/test_file_upload.py::test_a_file_over_the_limit_is_refused_and_removed",
                  "test_security_floors.py::test_the_installed_version_is_not_below_the_floor")),
    ),
    "Loads and unloads": (
        Advisory("CVE-2026-43631", "llama.cpp", "a model was unloaded under a request that had just come",
                 ("inference/worker/test_resident_models.py::test_unload_waits_for_the_requests_of_its_model",
                  "inference/worker/test_resident_models.py::test_requests_for_an_unloading_model_are_its_successors")),
    ),
}  # fmt: skip
"""By cause."""
