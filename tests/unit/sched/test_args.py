"""A model's settings in llama-server's words."""

from llamactl.sched.args import format_args
from llamactl.settings import ModelSettings, Switch


def test_only_what_is_set_is_told() -> None:
    assert format_args(ModelSettings(name="a", path="/m/a.gguf")) == ("--alias", "a", "--model", "/m/a.gguf")


def test_settings_have_llama_servers_options() -> None:
    settings = ModelSettings(
        name="a",
        path="/m/a.gguf",
        ctx=8192,
        n_gpu_layers=0,
        devices=("CUDA0", "CUDA1"),
        tensor_split=(3.0, 1.5),
        flash_attn=Switch.ON,
        mmap=False,
        fit=False,
        chat_template="chatml",
        reasoning=Switch.OFF,
        chat_template_kwargs={"preserve_thinking": True},
        seed=7,
        n_predict=100,
        tags=("chat", "german"),
        swa_full=True,
        context_shift=True,
    )
    assert format_args(settings)[4:] == (
        *("--ctx-size", "8192"),
        *("--n-gpu-layers", "0"),
        *("--device", "CUDA0,CUDA1"),
        *("--tensor-split", "3,1.5"),
        *("--flash-attn", "on"),
        *("--fit", "off"),
        *("--seed", "7"),
        *("--n-predict", "100"),
        *("--tags", "chat,german"),
        *("--chat-template", "chatml"),
        *("--reasoning", "off"),
        *("--chat-template-kwargs", '{"preserve_thinking": true}'),
        "--no-mmap",
        "--swa-full",
        "--context-shift",
    )
