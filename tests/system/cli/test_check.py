"""Are models that cannot work found, named, and left aside, and do readable ones in private places work?"""

from pathlib import Path

from tests.models import write_eye, write_model, write_projector
from tests.system.harness import PATHS, Llamactl


def test_good_configuration_passes(llamactl: Llamactl, tiny: dict[str, Path]) -> None:
    llamactl.write_models(a={"path": str(tiny["a"])})
    llamactl.cli("check")


def test_check_works_without_supervisor_and_names_every_problem(llamactl: Llamactl, tiny: dict[str, Path]) -> None:
    llamactl.write_models(
        a={"path": str(tiny["a"]), "aliases": ["same"]},
        b={"path": str(tiny["b"]), "aliases": ["same"]},
        gone={"path": "/srv/models/gone.gguf"},
        typo={"path": str(tiny["c"]), "ctxx": 4},
        wrong={"path": str(tiny["c"]), "ctx": "many"},
    )
    checked = llamactl.cli("check", status=1)
    said = checked.stdout + checked.stderr
    for word in ("same", "/srv/models/gone.gguf", "ctxx", "models.wrong"):
        assert word in said, f"{word} is not named"
    assert str(PATHS.models_config_dir / "test.toml") in said


def test_unreadable_file_is_found_with_its_cure(llamactl: Llamactl, tiny: dict[str, Path], tmp_models: Path) -> None:
    secret = tmp_models / "secret.gguf"
    secret.write_bytes(tiny["a"].read_bytes())
    secret.chmod(0o600)
    llamactl.write_models(secret={"path": str(secret)}, a={"path": str(tiny["a"])})
    checked = llamactl.cli("check", status=1)
    said = checked.stdout + checked.stderr
    assert str(secret) in said
    assert "chmod" in said
    llamactl.start()
    refused = llamactl.cli("load", "secret", status=1).stderr
    assert "(Permission denied); cannot be read by models: " in refused
    assert f"run `chmod o+r {secret}`, or `setfacl -m g:llamactl-model:r {secret}`" in refused
    assert "chmod o+r" in llamactl.cli("measure", "secret", status=1).stderr
    assert llamactl.chat("a").status == 200


def test_model_below_a_private_home_works(llamactl: Llamactl, tiny: dict[str, Path]) -> None:
    home = Path("/root")
    home.chmod(0o700)
    directory = home / "models"
    directory.mkdir(exist_ok=True)
    path = directory / "private.gguf"
    path.write_bytes(tiny["a"].read_bytes())
    path.chmod(0o644)
    llamactl.write_models(private={"path": str(path), "ctx": 1024})
    llamactl.cli("check")
    llamactl.start()
    assert llamactl.chat("private").status == 200


def test_symlink_is_resolved_into_the_unit(llamactl: Llamactl, tiny: dict[str, Path], tmp_models: Path) -> None:
    link = tmp_models / "link.gguf"
    link.symlink_to(tiny["a"])
    llamactl.write_models(link={"path": str(link), "ctx": 1024})
    llamactl.start()
    assert llamactl.chat("link").status == 200


def test_directory_of_models_is_discovered(llamactl: Llamactl, tiny: dict[str, Path], tmp_models: Path) -> None:
    (tmp_models / "one.gguf").write_bytes(tiny["a"].read_bytes())
    (tmp_models / "deep").mkdir()
    (tmp_models / "deep" / "file.gguf").write_bytes(tiny["b"].read_bytes())
    PATHS.models_config_dir.mkdir(parents=True, exist_ok=True)
    (PATHS.models_config_dir / "found.toml").write_text(f'[directories.all]\npath = "{tmp_models}"\n')
    llamactl.start()
    assert sorted(llamactl.list_models()) == ["deep", "one"]
    assert llamactl.chat("deep", max_tokens=2).status == 200


def name_directory(path: Path, keys: str = "") -> None:
    PATHS.models_config_dir.mkdir(parents=True, exist_ok=True)
    (PATHS.models_config_dir / "found.toml").write_text(f'[directories.all]\npath = "{path}"\n{keys}\n')


def test_directories_of_other_programs_are_used_as_they_are(
    llamactl: Llamactl, tiny: dict[str, Path], tmp_models: Path
) -> None:
    studio = tmp_models / "publisher" / "repository"
    repository = tmp_models / "models--org--Some-GGUF"
    snapshot, blobs = repository / "snapshots" / f"{1:040}", repository / "blobs"
    for directory in (studio, snapshot / "UD-Q4", blobs):
        directory.mkdir(parents=True)
    (studio / "studio-Q4_K_M.gguf").write_bytes(tiny["a"].read_bytes())
    write_model(tmp_models / "big.gguf", tensors_per_shard=8)
    (blobs / "single").write_bytes(tiny["b"].read_bytes())
    (snapshot / "single-Q8_0.gguf").symlink_to("../../blobs/single")
    for number, shard in enumerate(sorted(tmp_models.glob("big-*.gguf"))):
        shard.rename(blobs / f"shard{number}")
        (snapshot / "UD-Q4" / shard.name).symlink_to(f"../../../blobs/shard{number}")
    (tmp_models / "current").symlink_to(".")
    llamactl.start()
    name_directory(tmp_models)
    reloaded = llamactl.cli("reload")
    assert reloaded.stdout.splitlines()[1:] == [
        f"found in {tmp_models}:",
        "  publisher/repository: studio-Q4_K_M",
        f"  {snapshot.relative_to(tmp_models)}: single-Q8_0",
        f"  {snapshot.relative_to(tmp_models)}/UD-Q4: big",
    ]
    assert llamactl.cli("check").stdout.splitlines() == reloaded.stdout.splitlines()[1:]
    for name in ("studio-Q4_K_M", "single-Q8_0", "big"):
        assert llamactl.chat(name, max_tokens=2).status == 200, name
    assert llamactl.cli("reload").stdout == "nothing has changed\n"


def test_supervisor_has_heads_of_projectors_read_by_its_child(
    llamactl: Llamactl, tiny: dict[str, Path], tmp_models: Path
) -> None:
    for name in ("vision-Q4_K_M", "vision-Q8_0"):
        (tmp_models / f"{name}.gguf").write_bytes(tiny["a"].read_bytes())
    write_eye(tmp_models / "mmproj-F16.gguf").chmod(0o644)
    write_projector(tmp_models / "Qwen3.5-0.8B-mmproj-BF16.gguf", projector="qwen3vl_merger", width=1024)
    llamactl.start()
    name_directory(tmp_models)
    reloaded = llamactl.cli("reload")
    assert "Qwen3.5-0.8B-mmproj-BF16.gguf' is not used: it does not fit vision-Q4_K_M, vision-Q8_0" in reloaded.stderr
    for name in ("vision-Q4_K_M", "vision-Q8_0"):
        args = llamactl.get(f"/v1/models/{name}").json()["status"]["args"]
        assert args[args.index("--mmproj") + 1] == f"{tmp_models}/mmproj-F16.gguf"
    assert llamactl.chat("vision-Q8_0", max_tokens=2).status == 200


def test_escape_sequences_in_names_of_files_stay_in_them(
    llamactl: Llamactl, tiny: dict[str, Path], tmp_models: Path
) -> None:
    name = "x\x1b[31mred\x1b]0;title\x07\n\u202e"
    (tmp_models / f"{name}.gguf").write_bytes(tiny["a"].read_bytes())
    llamactl.start()
    name_directory(tmp_models, 'prefix = "esc/"')
    shown = r"esc/x\x1b[31mred\x1b]0;title\x07\n\u202e"
    for words, status in (
        (["reload"], 1),
        (["list"], 0),
        (["check"], 1),
        (["status", f"esc/{name}"], 3),
        (["load", shown], 1),
    ):
        done = llamactl.cli(*words, status=status)
        said = done.stdout + done.stderr
        assert said.replace("\n", "").isprintable(), words
        assert shown in said, words
    [entry] = llamactl.read_events("configuration_problem", LLAMACTL_MODEL=shown)
    assert str(entry["MESSAGE"]).isprintable()
