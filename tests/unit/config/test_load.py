"""What configuration files mean together, and how each mistake is told."""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from llamactl.config.load import load_config
from llamactl.config.model_keys import ALL_LAYERS
from llamactl.paths import Paths
from llamactl.settings import GIB, Config, GlobalSettings, ModelSettings, Switch
from tests.unit.config.tree import Tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_no_directory_at_all_gives_the_defaults(tmp_path: Path) -> None:
    config = load_config(Paths(config_dir=tmp_path / "nowhere"))
    assert replace(config, problems=()) == Config()


def test_directory_that_is_missing_is_told_with_its_cure(tree: Tree) -> None:
    before = tree.load()
    assert before.problems == ()
    tree.paths.models_config_dir.rmdir()
    (note,) = tree.load(before).problems
    assert (note.file, note.fatal) == (str(tree.paths.models_config_dir), False)
    tree.paths.config_dir.rmdir()
    (problem,) = tree.load(before).problems
    assert (problem.file, problem.fatal) == (str(tree.paths.config_dir), True)
    assert "no such directory" in problem.message
    assert "llamactl install" in problem.hint


def test_global_keys_in_friendly_units(tree: Tree) -> None:
    tree.glob(
        """
        margin = "2 GiB"
        host_margin = 1024
        host_budget = "1.5G"
        max_loaded = 3
        strict = true
        max_wait = "infinity"
        load_stall = "1min 30s"
        measure_timeout = 10
        stop_timeout = "500ms"
        idle_timeout = "2h"
        max_body = "1 MiB"
        max_queue = 8
        log_level = "debug"
        [margins]
        CUDA0 = "3 GiB"
        """
    )
    assert tree.load() == Config(
        settings=GlobalSettings(
            margin_bytes=2 * GIB,
            margins_bytes={"CUDA0": 3 * GIB},
            host_margin_bytes=1024,
            host_budget_bytes=3 * GIB // 2,
            max_loaded=3,
            strict=True,
            max_wait_s=0.0,
            load_stall_s=90.0,
            measure_timeout_s=10.0,
            stop_timeout_s=0.5,
            idle_timeout_s=7200.0,
            max_body_bytes=1 << 20,
            max_queue=8,
            log_level="debug",
        )
    )


def test_model_keys(tree: Tree) -> None:
    path = tree.model(
        """
        aliases = ["x", "y", "x", "m"]
        ctx = 8192
        parallel = 2
        n_gpu_layers = "all"
        devices = ["CUDA0", "CUDA1"]
        rpc = ["127.0.0.1:50052"]
        tensor_split = [3, 1]
        threads = 4
        batch = 256
        cache_type_k = "q8_0"
        cache_type_v = "q8_0"
        flash_attn = true
        mmap = false
        repack = false
        fit = false
        fit_ctx = 512
        fit_margin = "1M"
        chat_template = "{{ messages }}"
        reasoning = "off"
        seed = 7
        n_predict = 100
        tags = ["chat", "german", "chat"]
        swa_full = true
        context_shift = true
        chat_template_kwargs = { preserve_thinking = true, n = [1, 2.5, { a = "b" }] }
        pooling = "mean"
        pin = true
        priority = -3
        idle_timeout = "5min"
        load_on_start = true
        unlisted = true
        env = { A = "b", C = 3 }
        extra = { MemoryMax = "8G", CPUWeight = 50 }
        """
    )
    config = tree.load()
    assert config.problems == ()
    file = str(tree.models / "m.gguf")
    assert config.models["m"] == ModelSettings(
        name="m",
        path=file,
        files=(file,),
        aliases=("x", "y"),
        ctx=8192,
        parallel=2,
        n_gpu_layers=ALL_LAYERS,
        devices=("CUDA0", "CUDA1"),
        rpc=("127.0.0.1:50052",),
        tensor_split=(3.0, 1.0),
        threads=4,
        batch=256,
        ubatch=256,
        cache_type_k="q8_0",
        cache_type_v="q8_0",
        flash_attn=Switch.ON,
        mmap=False,
        repack=False,
        fit=False,
        fit_ctx=512,
        fit_margin_bytes=1 << 20,
        chat_template="{{ messages }}",
        reasoning=Switch.OFF,
        seed=7,
        n_predict=100,
        tags=("chat", "german"),
        swa_full=True,
        context_shift=True,
        chat_template_kwargs={"preserve_thinking": True, "n": [1, 2.5, {"a": "b"}]},
        pooling="mean",
        pin=True,
        priority=-3,
        idle_timeout_s=300.0,
        load_on_start=True,
        unlisted=True,
        env={"A": "b", "C": "3"},
        extra={"MemoryMax": "8G", "CPUWeight": 50},
        source=str(path),
    )


MISTAKES = [
    ('5.path = "/x"', "models.m.5: unknown key '5'; a name with a dot stands in quotes: [models.\"m.5\"]"),
    ("n_gpu_layer = 0", "models.m.n_gpu_layer: unknown key 'n_gpu_layer'; did you mean 'n_gpu_layers'?"),
    ("n_ctx = 1", "models.m.n_ctx: unknown key 'n_ctx'; did you mean 'ctx'?"),
    ("gpu-layers = 1", "models.m.gpu-layers: unknown key 'gpu-layers'; did you mean 'n_gpu_layers'?"),
    ("zzzz = 1", "models.m.zzzz: unknown key 'zzzz'"),
    ("no_mmap = true", "models.m.no_mmap: unknown key 'no_mmap'; did you mean 'mmap' = false?"),
    ('ctx = "big"', "models.m.ctx: cannot use ctx = 'big': must be an integer of 0 or more or \"auto\""),
    ("ctx = true", 'models.m.ctx: cannot use ctx = true: must be an integer of 0 or more or "auto"'),
    ("ctx = -1", 'models.m.ctx: cannot use ctx = -1: must be an integer of 0 or more or "auto"'),
    (
        "ctx = 0x" + "f" * 9000,
        "models.m.ctx: cannot use ctx = an integer of more than 64 bits: must be an integer of 0 or",
    ),
    ("parallel = 0", "models.m.parallel: cannot use parallel = 0: must be an integer from 1 to 256"),
    ('aliases = ["a", 1]', 'models.m.aliases: cannot use aliases = a list: must be a list of texts, as in ["a", "b"]'),
    ('aliases = [" a"]', "models.m.aliases: cannot use aliases = a list: ' a': blanks around it and unprintable"),
    ('rpc = ["localhost:50052"]', "models.m.rpc: cannot use rpc = a list: 'localhost:50052' must be an IPv4 address"),
    ('rpc = ["[::1]:50052"]', "models.m.rpc: cannot use rpc = a list: '[::1]:50052' must be an IPv4 address"),
    ('rpc = "127.0.0.1:0"', "models.m.rpc: cannot use rpc = '127.0.0.1:0': '127.0.0.1:0' must end in a port"),
    ('devices = ["none", "CUDA0"]', "models.m.devices: cannot use devices = a list: 'none' (the CPU alone) cannot be"),
    ("tensor_split = [0, 0]", "models.m.tensor_split: cannot use tensor_split = a list: must have a share above 0"),
    ("tensor_split = [nan]", "models.m.tensor_split: cannot use tensor_split = a list: must be a list of shares"),
    ('cache_type_k = "q9"', 'models.m.cache_type_k: cannot use cache_type_k = \'q9\': must be one of "f32", "f16"'),
    ('flash_attn = "maybe"', 'models.m.flash_attn: cannot use flash_attn = \'maybe\': must be "auto", "on" or "off"'),
    ('mmap = "no"', "models.m.mmap: cannot use mmap = 'no': must be true or false, without quotes"),
    (
        'idle_timeout = "5 parsecs"',
        "models.m.idle_timeout: cannot use idle_timeout = '5 parsecs': 'parsecs' is no unit",
    ),
    ("idle_timeout = nan", "models.m.idle_timeout: cannot use idle_timeout = nan: must be 0 or more"),
    ("pin = 1979-05-27", "models.m.pin: cannot use pin = 1979-05-27: must be true or false"),
    ("env = { A = true }", "models.m.env: cannot use env = a table: A must be a text, not true"),
    ('env = { "A B" = "x" }', "models.m.env: cannot use env = a table: 'A B' is no name of an environment variable"),
    ('env = { LLAMACTL_SPEC = "x" }', "models.m.env: cannot use env = a table: LLAMACTL_SPEC is set by llamactl or"),
    ("extra = 5", "models.m.extra: cannot use extra = 5: must be a table of unit properties"),
    (
        "extra = { MemoryMax = { a = 1 } }",
        "models.m.extra: cannot use extra = a table: MemoryMax must be a text, a number",
    ),
    (
        'extra = { MemoryMacs = "8G" }',
        "models.m.extra.MemoryMacs: cannot set 'extra.MemoryMacs': not a supported property",
    ),
    ('extra = { ExecStart = "x" }', "models.m.extra.ExecStart: cannot set 'extra.ExecStart': llamactl sets it itself"),
    (
        'chat_template_file = "x.jinja"',
        "models.m.chat_template_file: cannot use chat_template_file = 'x.jinja': must be",
    ),
    (
        'chat_template_file = "/nowhere/x"',
        "models.m.chat_template_file: cannot use chat_template_file = '/nowhere/x': no such",
    ),
    (
        'chat_template = "chat-ml"',
        "models.m.chat_template: cannot use chat_template = 'chat-ml': is no name of a built-in template; did you mean "
        "'chatml'?",
    ),
    (
        'chat_template = "{{ .Prompt }}"',
        "models.m.chat_template: cannot use chat_template = '{{ .Prompt }}': must be a Jinja template that uses "
        "`messages`, or the name",
    ),
    (
        "chat_template_kwargs = { tools = 1 }",
        "models.m.chat_template_kwargs: cannot use chat_template_kwargs = a table: tools is set by the request itself",
    ),
    (
        "chat_template_kwargs = { day = 2026-12-01 }",
        "models.m.chat_template_kwargs: cannot use chat_template_kwargs = a table: day must be a text",
    ),
    ('tags = ["a,b"]', "models.m.tags: cannot use tags = a list: 'a,b' must be one word or some, without commas"),
    ("seed = 4294967296", "models.m.seed: cannot use seed = 4294967296: must be an integer from -1 to 4294967295"),
    ('reasoning = "maybe"', "models.m.reasoning: cannot use reasoning = 'maybe': must be"),
    ('chat_template = "a\\u0000"', "models.m.chat_template: cannot use chat_template = 'a\\x00': must not contain NUL"),
    ('mmproj = "/nowhere/x"', "models.m.mmproj: cannot use '/nowhere/x': no such file"),
    ('media_path = "/nowhere/x"', "models.m.media_path: cannot use '/nowhere/x': it is no directory"),
    ('media_path = "pictures"', "models.m.media_path: cannot use media_path = 'pictures': must be an absolute path"),
    ("batch = 64\nubatch = 128", "models.m.ubatch: cannot use ubatch = 128: larger than batch, which is 64"),
    (
        'cache_type_v = "q8_0"\nflash_attn = "off"',
        'models.m.cache_type_v: cannot use cache_type_v = "q8_0" with flash_attn',
    ),
    (
        'devices = "CUDA0"\ntensor_split = [1, 1]',
        "models.m.tensor_split: cannot use tensor_split of 2 shares: there are 1",
    ),
]


@pytest.mark.parametrize(("keys", "message"), MISTAKES, ids=[keys[:40] for keys, _ in MISTAKES])
def test_a_mistake_is_told_once_with_its_key_and_the_model_is_invalid(tree: Tree, keys: str, message: str) -> None:
    tree.model(keys)
    tree.model(name="good")
    [complaint] = tree.complaints()
    assert complaint.startswith(f"etc/models.d/m.toml: {message}")
    config = tree.load()
    assert list(config.models) == ["good"]
    assert list(config.invalid) == ["m"]
    assert config.problems[0].model == "m"
    assert config.invalid["m"].reason.startswith(config.problems[0].message)


def test_all_mistakes_of_a_table_are_told_at_once(tree: Tree) -> None:
    tree.model(
        """
        n_gpu_layer = 0
        batch = "many"
        ubatch = 4096
        aliases = "good"
        cache_type_v = "q8_0"
        flash_attn = "off"
        mmproj = "/nowhere/x.gguf"
        sampling = { temprature = 1, top_k = -1, min_p = 0.1, top_p = 2 }
        env = { "A B" = "x", LLAMACTL_SPEC = "x", GOOD = "x" }
        extra = { MemoryMacs = "8G", ExecStart = "x" }
        chat_template_kwargs = { tools = 1, messages = 2 }
        """,
        name="m",
    )
    tree.model(name="a-good", keys='aliases = "good"')
    starts = [
        "n_gpu_layer: unknown key",
        "batch: cannot use batch = 'many'",
        "sampling: cannot use sampling = a table: 'temprature' is no setting of sampling; did you mean 'temperature'?",
        "sampling: cannot use sampling = a table: top_k must be",
        "sampling: cannot use sampling = a table: top_p must be",
        "env: cannot use env = a table: 'A B' is no name",
        "env: cannot use env = a table: LLAMACTL_SPEC is set",
        "chat_template_kwargs: cannot use chat_template_kwargs = a table: tools is",
        "chat_template_kwargs: cannot use chat_template_kwargs = a table: messages is",
        "mmproj: cannot use '/nowhere/x.gguf'",
        "cache_type_v: cannot use cache_type_v",
        "extra.MemoryMacs: cannot set",
        "extra.ExecStart: cannot set",
        "aliases: cannot use the alias 'good'",
    ]
    complaints = tree.complaints()
    for complaint, start in zip(complaints, starts, strict=True):
        assert complaint.startswith(f"etc/models.d/m.toml: models.m.{start}")
    assert list(tree.load().models) == ["a-good"]


def test_all_wrong_margins_are_told_at_once_and_none_is_in_force(tree: Tree) -> None:
    tree.glob("[margins]\nCUDA0 = 'x'\nHost = 1\nCUDA1 = 5")
    assert [complaint.rpartition("a table: ")[2][:5] for complaint in tree.complaints()] == ["CUDA0", "Host:"]
    config = tree.load()
    assert (config.settings.margins_bytes, config.unusable) == ({}, ("margins",))


BROKEN_FILES = [
    (b"[models.m\n", "line 1: not TOML: Expected ']' at the end of a table declaration, at column 10"),
    (b"a = 1\nb = \n", "line 2: not TOML: Invalid value, at column 5"),
    (b"a = 'x", 'line 1: not TOML: Expected "\'", at the end of the file'),
    (b"a = 1\n# \xff\n", "line 2: byte 0xff is not UTF-8"),
    (b"a = \0", "line 1: not TOML: Invalid value, at column 5"),
    (b"a = " + b"[" * 100_000, "not TOML: nested too deeply"),
    (b"# two\n" + b"a." * 20_000 + b"a = 1", "line 2: a dotted key has more than 100 parts"),
    (b"a = 1\n[" + b'"x" . ' * 200 + b"y]", "line 2: a dotted key has more than 100 parts"),
    (b"a = " + b"9" * 5000, "not TOML: a number has too many digits"),
    (b"#" * (1 << 20) + b"#", "is larger than 1 MiB"),
]


@pytest.mark.parametrize(("content", "message"), BROKEN_FILES, ids=[str(content[:12]) for content, _ in BROKEN_FILES])
def test_a_file_that_cannot_be_read_is_told_and_the_others_work(tree: Tree, content: bytes, message: str) -> None:
    tree.file("a.toml", content)
    tree.model()
    [complaint] = tree.complaints()
    assert message in complaint
    assert complaint.startswith("etc/models.d/a.toml: ")
    assert list(tree.load().models) == ["m"]


def make_directory(path: Path) -> None:
    path.mkdir()


def make_loop(path: Path) -> None:
    path.symlink_to(path.name)


def make_dangling(path: Path) -> None:
    path.symlink_to("gone")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (make_directory, "is a directory, not a file"),
        (make_loop, "its symlinks form a loop"),
        (make_dangling, "is a symlink to 'gone', which does not exist"),
        (os.mkfifo, "is not a regular file"),
    ],
)
def test_what_is_no_file_is_told_and_never_waited_for(tree: Tree, make: object, message: str) -> None:
    assert callable(make)
    make(tree.paths.models_config_dir / "a.toml")
    make(tree.paths.config_file)
    assert tree.complaints() == [
        f"etc/llamactl.toml: cannot read the file: {message}",
        f"etc/models.d/a.toml: cannot read the file: {message}",
    ]


def test_models_d_that_is_a_file_is_told(tree: Tree) -> None:
    tree.paths.models_config_dir.rmdir()
    tree.paths.models_config_dir.write_text("")
    assert tree.complaints() == ["etc/models.d: cannot read the directory: not a directory"]


def test_hidden_files_and_other_suffixes_are_left_alone(tree: Tree) -> None:
    for name in (".m.toml", "m.toml~", "m.toml.disabled", "README"):
        tree.file(name, "garbage [")
    assert tree.load() == Config()


def test_byte_order_mark_is_no_mistake(tree: Tree) -> None:
    tree.glob(b"\xef\xbb\xbfmax_loaded = 2")
    assert tree.load().settings.max_loaded == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_load = 3", "max_load: unknown key 'max_load'; did you mean 'max_loaded'?"),
        (
            "[defaults]\nhost_budget = '1 GiB'",
            "defaults.host_budget: unknown key 'host_budget'; this key is for the whole machine: it stands at the top "
            "of the file, above [defaults]",
        ),
        (
            "[defaults]\nhost_buget = '1 GiB'",
            "defaults.host_buget: unknown key 'host_buget'; did you mean 'host_budget'? this key is for the whole "
            "machine: it stands at the top of the file, above [defaults]",
        ),
        (
            "[defaults]\nrecursive = true",
            "defaults.recursive: unknown key 'recursive'; this key stands in a [directories.LABEL] table",
        ),
        ("ctx = 3", "ctx: unknown key 'ctx'; put it into the [defaults] table to set it for all models"),
        (
            "[models.x]\npath = '/x'",
            "models: unknown key 'models'; models stand in files of their own, in models.d/NAME.toml",
        ),
        ("[defaults]\npath = '/x'", "defaults.path: unknown key 'path'; this key is for a single [models.NAME] table"),
        ("[defaults]\nctxx = 1", "defaults.ctxx: unknown key 'ctxx'; did you mean 'ctx'?"),
        ("defaults = 1", "defaults: cannot use defaults = 1: must be a table"),
        ("margin = '8 GB'", "margin: cannot use margin = '8 GB': GB may mean 1000 or 1024 to a step; write GiB or G"),
        (
            "[margins]\nHost = '2 GiB'",
            "margins: cannot use margins = a table: Host: main memory has a key of its own, `host_margin`",
        ),
        ("[margins]\nCUDA0 = 'x'", "margins: cannot use margins = a table: CUDA0 must be a number of bytes or a text"),
        (
            "stop_timeout = 0",
            "stop_timeout: cannot use stop_timeout = 0: must be a time above 0 that ends, as in '60s'",
        ),
        ("load_stall = 'infinity'", "load_stall: cannot use load_stall = 'infinity': must be a time above 0 that ends"),
        ("strict = 1", "strict: cannot use strict = 1: must be true or false, without quotes"),
    ],
)
def test_a_global_mistake_leaves_only_that_key_at_its_default(tree: Tree, text: str, message: str) -> None:
    tree.glob("max_queue = 7\n" + text)
    tree.model()
    [complaint] = tree.complaints()
    assert complaint.startswith(f"etc/llamactl.toml: {message}")
    config = tree.load()
    assert config.settings == GlobalSettings(max_queue=7)
    assert list(config.models) == ["m"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_loaded = 1", "max_loaded: unknown key 'max_loaded'; this key stands in llamactl.toml"),
        ("ctx = 1", "ctx: unknown key 'ctx'; model keys stand in a [models.NAME] table"),
        ("[model.x]", "model: unknown key 'model'"),
        ("models = 3", "models: cannot use models = 3: must hold tables"),
        ("[models]\npath = '/x'", "models.path: cannot use '/x': must be a table, [models.path]; settings of a model"),
        ("[models.x]", 'models.x: has no path; add path = "/...gguf" to [models.x]'),
        ("[models.'a b']", 'models."a b": has no path; add path'),
        ("[models.x]\npath = 'x.gguf'", "models.x.path: cannot use path = 'x.gguf': must be an absolute path"),
        (
            "[models.x]\npath = '~/x.gguf'",
            "models.x.path: cannot use path = '~/x.gguf': must be an absolute path; `~` is not",
        ),
        ("[models.x]\npath = '/nowhere/x'", "models.x.path: cannot use '/nowhere/x': no such file"),
        ("[models.x]\npath = '/dev/null'", "models.x.path: cannot use '/dev/null': is not a regular file"),
        (
            "[models.x]\npath = '/tmp'",
            "models.x.path: cannot use '/tmp': is a directory; name it in a [directories.LABEL]",
        ),
        ("[models.x]\npath = '/a\\u0000'", "models.x.path: cannot use '/a\\\\u0000': no such file"),
        ('[models.x]\npath = "/a\\u0000"', "models.x.path: cannot use path = '/a\\x00': must not contain NUL"),
        ("[models.' x']\npath = '/etc/hostname'", "models.\" x\": cannot use model name ' x': blanks around it"),
        ("[directories.x]", 'directories.x: has no path; add path = "/..." to [directories.x]'),
        (
            "[directories.x]\npath = '/nowhere'",
            "directories.x.path: cannot read the directory '/nowhere': no such file",
        ),
        (
            "[directories.x]\npath = '/etc/hostname'",
            "directories.x.path: cannot read the directory '/etc/hostname': not a",
        ),
    ],
)
def test_a_mistake_in_models_d_leaves_other_files_alone(tree: Tree, text: str, message: str) -> None:
    tree.file("a.toml", text)
    tree.model()
    [complaint] = tree.complaints()
    assert complaint.startswith(f"etc/models.d/a.toml: {message}")
    assert list(tree.load().models) == ["m"]


def test_all_mistakes_are_found_at_once(tree: Tree) -> None:
    tree.model("ctxx = 1\nparallel = 'x'\nmmap = 3")
    assert len(tree.complaints()) == 3


def test_symlinks_are_resolved(tree: Tree) -> None:
    real = tree.gguf("deep/real.gguf")
    link = tree.models / "link.gguf"
    link.symlink_to("deep/real.gguf")
    tree.file("a.toml", f'[models.a]\npath = "{link}"')
    assert tree.load().models["a"].path == str(real)


def test_dangling_symlink_names_its_target(tree: Tree) -> None:
    link = tree.models / "link.gguf"
    link.symlink_to("gone.gguf")
    tree.file("a.toml", f'[models.a]\npath = "{link}"')
    assert tree.complaints() == [
        "etc/models.d/a.toml: models.a.path: cannot use 'models/link.gguf': "
        "is a symlink to 'gone.gguf', which does not exist"
    ]


# --- shards ---


def test_all_shards_belong_to_the_model(tree: Tree) -> None:
    files = [str(tree.gguf(f"big-0000{number}-of-00003.gguf")) for number in (1, 2, 3)]
    tree.file("a.toml", f'[models.big]\npath = "{files[0]}"')
    model = tree.load().models["big"]
    assert model.path == files[0]
    assert model.files == tuple(files)


def test_a_missing_shard_is_named(tree: Tree) -> None:
    first = tree.gguf("big-00001-of-00003.gguf")
    tree.gguf("big-00003-of-00003.gguf")
    tree.file("a.toml", f'[models.big]\npath = "{first}"')
    [complaint] = tree.complaints()
    assert complaint.endswith("shard 2 of 3 (big-00002-of-00003.gguf) is missing")


def test_path_must_name_the_first_shard(tree: Tree) -> None:
    tree.gguf("big-00001-of-00002.gguf")
    second = tree.gguf("big-00002-of-00002.gguf")
    tree.file("a.toml", f'[models.big]\npath = "{second}"')
    [complaint] = tree.complaints()
    assert complaint.endswith("is shard 2 of 2; name the first: 'big-00001-of-00002.gguf'")


def test_symlink_to_the_first_shard_finds_the_others_beside_its_target(tree: Tree) -> None:
    files = [str(tree.gguf(f"deep/big-0000{number}-of-00002.gguf")) for number in (1, 2)]
    (tree.models / "big.gguf").symlink_to(files[0])
    tree.file("a.toml", f'[models.big]\npath = "{tree.models}/big.gguf"')
    assert tree.load().models["big"].files == tuple(files)


def test_shards_that_are_links_to_other_names_are_given_as_links(tree: Tree) -> None:
    links = []
    for number, blob in ((1, "aaa"), (2, "bbb")):
        tree.gguf(f"blobs/{blob}")
        links.append(tree.models / f"big-0000{number}-of-00002.gguf")
        links[-1].symlink_to(f"blobs/{blob}")
    tree.file("a.toml", f'[models.big]\npath = "{links[0]}"')
    model = tree.load().models["big"]
    assert model.path == str(links[0])
    assert model.files == (*map(str, links), f"{tree.models}/blobs/aaa", f"{tree.models}/blobs/bbb")


def test_shards_behind_links_to_links_are_refused(tree: Tree) -> None:
    for number, blob in ((1, "aaa"), (2, "bbb")):
        tree.gguf(f"blobs/{blob}")
        (tree.models / blob).symlink_to(f"blobs/{blob}")
        (tree.models / f"big-0000{number}-of-00002.gguf").symlink_to(blob)
    tree.file("a.toml", f'[models.big]\npath = "{tree.models}/big-00001-of-00002.gguf"')
    [complaint] = tree.complaints()
    assert (
        "its shard 'models/big-00001-of-00002.gguf' is a symlink that leads to its file by way of others" in complaint
    )


# --- names ---


def test_of_two_models_of_one_name_the_first_wins_and_both_are_named(tree: Tree) -> None:
    first, second = tree.gguf("first.gguf"), tree.gguf("second.gguf")
    tree.file("a.toml", f'[models.x]\npath = "{first}"')
    tree.file("b.toml", f'[models.x]\npath = "{second}"')
    assert tree.complaints() == [
        "etc/models.d/b.toml: models.x: cannot use the name 'x': a model in etc/models.d/a.toml too is called so; "
        "rename one of them"
    ]
    config = tree.load()
    assert config.models["x"].path == str(first)
    assert config.invalid == {}


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            '[models.x]\naliases = ["n"]',
            '[models.y]\naliases = ["n"]',
            "alias 'n' for model 'y': it is an alias of model 'x'",
        ),
        ("[models.n]", '[models.y]\naliases = ["n"]', "alias 'n' for model 'y': it is the name of model 'n'"),
        ('[models.x]\naliases = ["n"]', "[models.n]", "name 'n' for model 'n': it is an alias of model 'x'"),
    ],
)
def test_a_name_that_is_taken_makes_the_second_model_invalid(tree: Tree, first: str, second: str, message: str) -> None:
    path = tree.gguf("m.gguf")
    tree.file("a.toml", f'{first}\npath = "{path}"')
    tree.file("b.toml", f'{second}\npath = "{path}"')
    [complaint] = tree.complaints()
    assert f"{message} in etc/models.d/a.toml; rename one of them" in complaint
    config = tree.load()
    assert len(config.models) == len(config.invalid) == 1
    assert not set(config.models) & set(config.invalid)


def test_an_invalid_model_keeps_its_name(tree: Tree) -> None:
    path = tree.gguf("m.gguf")
    tree.file("a.toml", "[models.x]\npath = '/nowhere'")
    tree.file("b.toml", f'[models.x]\npath = "{path}"')
    config = tree.load()
    assert config.models == {}
    assert config.invalid["x"].reason == "cannot use '/nowhere': no such file"


# --- defaults ---


def test_defaults_reach_every_model_that_does_not_set_them(tree: Tree) -> None:
    tree.glob(
        'idle_timeout = "1h"\n[defaults]\nctx = 1024\nparallel = 2\nenv = { A = "1", B = "1" }\n'
        "chat_template_kwargs = { a = 1, b = 1 }\n"
    )
    tree.model('ctx = 2048\nenv = { B = "2" }\nchat_template_kwargs = { b = 2 }\n')
    tree.model("idle_timeout = 0", name="n")
    models = tree.load().models
    assert (models["m"].ctx, models["m"].parallel, models["m"].idle_timeout_s) == (2048, 2, 3600.0)
    assert models["m"].env == {"A": "1", "B": "2"}
    assert models["m"].chat_template_kwargs == {"a": 1, "b": 2}
    assert (models["n"].ctx, models["n"].idle_timeout_s) == (1024, 0.0)


def test_model_is_as_old_as_its_file(tree: Tree) -> None:
    tree.model()
    os.utime(tree.models / "m.gguf", (5, 1_700_000_000.9))
    before = tree.load()
    assert before.created == {"m": 1_700_000_000}
    assert tree.load(before).created == before.created


def test_ubatch_follows_a_smaller_batch_unless_it_is_set(tree: Tree) -> None:
    tree.glob("[defaults]\nubatch = 512")
    tree.model("batch = 64")
    assert tree.load().models["m"].ubatch == 64


def test_chat_template_file_that_is_replaced_is_a_change_of_its_model(tree: Tree) -> None:
    template = tree.root / "chat.jinja"
    template.write_text("before {{ messages }}")
    tree.model(f'chat_template_file = "{template}"')
    before = tree.load()
    template.write_text("after {{ messages }}")
    (name,) = before.models
    assert tree.load(before).models[name] != before.models[name]


def test_chat_template_file_is_read(tree: Tree) -> None:
    template = tree.root / "t.jinja"
    template.write_text("{{ messages }}")
    tree.glob('[defaults]\nchat_template = "chatml"')
    tree.model(f'chat_template_file = "{template}"')
    assert tree.load().models["m"].chat_template == "{{ messages }}"


def test_both_spellings_of_a_template_are_one_too_many(tree: Tree) -> None:
    template = tree.root / "t.jinja"
    template.write_text("{{ messages }}")
    tree.model(f'chat_template = "{{{{ messages }}}}"\nchat_template_file = "{template}"')
    assert tree.complaints() == [
        "etc/models.d/m.toml: models.m.chat_template_file: cannot use chat_template and chat_template_file together; "
        "remove one of them"
    ]


def test_settings_that_fit_into_no_environment_variable_are_refused(tree: Tree) -> None:
    values = ", ".join(f'V{number} = "{"x" * 60000}"' for number in range(3))
    tree.model(f"env = {{ {values} }}")
    [complaint] = tree.complaints()
    assert "all settings together take" in complaint


# --- reading again ---


def test_broken_file_leaves_its_models_as_they_were(tree: Tree) -> None:
    tree.model('aliases = ["alias"]')
    tree.model("ctxx = 1", name="bad")
    tree.model(name="other")
    before = tree.load()
    tree.file("m.toml", "[models.m")
    tree.file("bad.toml", "[models.bad")
    tree.model("ctx = 5", name="other")
    after = tree.load(before)
    assert after.models["m"] == before.models["m"]
    assert after.invalid == before.invalid
    assert after.models["other"].ctx == 5
    assert [problem.where for problem in after.problems] == ["line 1", "line 1"]
    assert set(tree.load().models) == {"other"}


def test_kept_models_keep_their_names_too(tree: Tree) -> None:
    tree.model('aliases = ["alias"]')
    before = tree.load()
    tree.file("m.toml", "[models.m")
    tree.model(name="alias")
    after = tree.load(before)
    assert set(after.models) == {"m"}
    assert set(after.invalid) == {"alias"}


def test_broken_global_file_changes_nothing(tree: Tree) -> None:
    tree.glob("max_loaded = 1\n[defaults]\nctx = 7")
    tree.model()
    before = tree.load()
    tree.glob("max_loaded = ")
    tree.model(name="new")
    after = tree.load(before)
    assert (after.settings, after.models) == (before.settings, before.models)
    assert "nothing of the configuration was changed" in after.problems[0].message


def test_removed_file_removes_its_models_also_from_what_was_before(tree: Tree) -> None:
    path = tree.model()
    before = tree.load()
    path.unlink()
    assert tree.load(before).models == {}


def test_long_texts_with_dots_are_no_deep_keys(tree: Tree) -> None:
    template = "messages" + "a" * 50_000 + " x.y.z " * 1000 + "..." * 1000
    tree.file("a.toml", f'[models.m]\npath = "{tree.gguf("m")}"\nchat_template = "{template}"\n'.encode())
    assert tree.load().models["m"].chat_template == template


# --- what a reload keeps of llamactl.toml ---


@pytest.mark.parametrize(
    ("broken", "kept"),
    [
        ('host_budget = "lots"', "it keeps 500 MiB"),
        ('host_bugdet = "500 MiB"', "host_budget keeps 500 MiB"),
        ("host_budget = -1", "it keeps 500 MiB"),
    ],
)
def test_typo_in_a_limit_keeps_the_limit_and_says_so(tree: Tree, broken: str, kept: str) -> None:
    tree.glob('host_budget = "500 MiB"\nmax_loaded = 2\n')
    before = tree.load()
    tree.glob(f"{broken}\nmax_loaded = 3\n")
    after = tree.load(before)
    assert after.settings == replace(before.settings, max_loaded=3)
    assert [problem.hint for problem in after.problems if kept in problem.hint]
    assert after.unusable == ()
    assert tree.load(after).settings == after.settings


def test_typo_in_a_table_of_limits_keeps_the_table(tree: Tree) -> None:
    tree.glob('[margins]\nCUDA0 = "2 GiB"\n')
    before = tree.load()
    tree.glob('[margins]\nCUDA0 = "two"\n')
    after = tree.load(before)
    assert after.settings == before.settings
    assert "keeps CUDA0 2 GiB" in str(after.problems[0])


def test_typo_in_a_default_keeps_it_for_the_models(tree: Tree) -> None:
    tree.model()
    tree.glob("[defaults]\nctx = 512\nparallel = 2\n")
    before = tree.load()
    tree.glob('[defaults]\nctx = "many"\n')
    after = tree.load(before)
    assert (after.models["m"].ctx, after.models["m"].parallel) == (512, 4)
    tree.glob("defaults = 1\n")
    assert tree.load(after).models["m"].ctx == 512


def test_limit_that_is_taken_out_of_the_file_is_gone(tree: Tree) -> None:
    tree.glob('host_budget = "500 MiB"\n')
    before = tree.load()
    tree.glob("")
    assert tree.load(before).settings.host_budget_bytes is None


def test_what_cannot_be_used_at_a_start_is_named_as_not_in_force(tree: Tree) -> None:
    tree.glob('host_budget = "lots"\nmax_loaded = 2\n[defaults]\nctx = "many"\n')
    first = tree.load()
    assert first.unusable == ("host_budget", "defaults.ctx")
    assert tree.load(first).unusable == ("host_budget", "defaults.ctx")
    tree.glob('host_budget = "1 GiB"\n')
    assert tree.load(first).unusable == ()


def test_limits_of_a_file_that_is_no_toml_are_named_as_not_in_force(tree: Tree) -> None:
    tree.glob('host_budget = "500 MiB"\nmax_loaded =\n[margins]\nCUDA0 = "1 GiB"\n')
    assert tree.load().unusable == ("margins", "host_budget", "max_loaded")


def test_file_that_cannot_be_read_is_named_and_may_hide_what_was_started_from_it(tree: Tree) -> None:
    tree.model()
    before = tree.load().models["m"]
    broken = tree.file("m.toml", "[models.m\n")
    config = tree.load()
    assert config.unread == (str(broken),)
    assert config.may_hide(before)
    assert not config.may_hide(replace(before, source=str(broken) + "x"))
    tree.model(name="n")
    assert not tree.load().may_hide(tree.load().models["n"])


# --- hints ---


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("ctx = 4294967297", "cannot use ctx = 4294967297: must be an integer of 0 or more, and at most 2147483647"),
        ("ctx = -1", "must be an integer of 0 or more"),
        ('aliases = ["x", 5]', "item 2 is 5"),
        ("aliases = [[]]", "item 1 is a list"),
    ],
)
def test_complaint_names_the_limit_or_the_item(tree: Tree, key: str, told: str) -> None:
    tree.model(key)
    assert told in "\n".join(tree.complaints())


@pytest.mark.parametrize(
    ("table", "hint"),
    [
        ("model", "models stand in [models.NAME] tables"),
        ("Models", "models stand in [models.NAME] tables"),
        ("directory", "did you mean [directories.LABEL]?"),
    ],
)
def test_misspelt_table_hints_at_the_right_one(tree: Tree, table: str, hint: str) -> None:
    tree.file("x.toml", f'[{table}.a]\npath = "/x.gguf"\n')
    assert tree.load().problems[0].hint == hint


@pytest.mark.parametrize("table", ["models.m", "directories.d"])
def test_key_of_the_machine_in_a_table_of_models_is_sent_to_llamactl_toml(tree: Tree, table: str) -> None:
    tree.file("m.toml", f'[{table}]\npath = "{tree.models}"\nhost_budget = "1 GiB"')
    assert any(
        f"{table}.host_budget: unknown key 'host_budget'; this key stands in llamactl.toml" in complaint
        for complaint in tree.complaints()
    )
