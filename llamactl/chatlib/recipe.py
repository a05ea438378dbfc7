"""What of llama.cpp's sources goes into the library, and with which options of the compiler?

Those of common/ that the chat layer needs; the linker leaves out what of them nobody calls. Optimised for size: parsing
an answer is a thousandth of computing it.
"""

from pathlib import Path

COMMON = (
    "chat.cpp",
    "chat-auto-parser-generator.cpp",
    "chat-auto-parser-helpers.cpp",
    "chat-diff-analyzer.cpp",
    "chat-peg-parser.cpp",
    "common.cpp",
    "jinja/caps.cpp",
    "jinja/lexer.cpp",
    "jinja/parser.cpp",
    "jinja/runtime.cpp",
    "jinja/string.cpp",
    "jinja/value.cpp",
    "json.cpp",
    "json-schema.cpp",
    "json-schema-to-grammar.cpp",
    "log.cpp",
    "peg-parser.cpp",
    "reasoning-budget.cpp",
    "trie.cpp",
    "unicode.cpp",
)
FOLDERS = ("parsers",)
"""All of what lies there: a file for each family of templates that needs one."""
OURS = ("analysis.cpp", "layer.cpp", "libllama.cpp")
INCLUDES = ("common", "vendor", "include", "ggml/include")
COMPILE = (
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-fvisibility=hidden",
    "-fvisibility-inlines-hidden",
    "-ffunction-sections",
    "-fdata-sections",
    "-DNDEBUG",
    "-w",
)
WRAPPED = ("_ZN10autoparser10autoparser16analyze_templateERK20common_chat_template",)
"""Functions of llama.cpp that are called through ours (analysis.cpp)."""
LINK = (
    "-shared",
    "-Wl,--gc-sections",
    "-Wl,-z,defs",
    "-Wl,--exclude-libs,ALL",
    *(f"-Wl,--wrap={name}" for name in WRAPPED),
    "-s",
)


def list_sources(llama_cpp: Path) -> list[Path]:
    """Of llama.cpp, below its root. Raises FileNotFoundError for one that this version does not have."""
    common = llama_cpp / "common"
    sources = [common / name for name in COMMON]
    for folder in FOLDERS:
        sources += sorted((common / folder).glob("*.cpp"))
    for source in sources:
        if not source.is_file():
            raise FileNotFoundError(source)
    return sources
