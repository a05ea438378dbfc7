// What is llama.cpp's chat layer (common/chat.h) to a language that only knows C? Texts and handles: JSON in, JSON out.
//
// No C++ type and no exception crosses this border; what went wrong is an object {"error": {"kind", "message"}}. Kinds:
// "invalid" (what the caller gave), "nesting" (the same, too deep), "failed" (what llama.cpp made of it), "memory".
// llama.cpp itself has no limits, and recursion in C++ ends with the process: all that it recurses over is counted here
// before it sees it. Every function may be called without Python's lock. Templates may be used by several threads at
// once, an answer by one at a time. Texts that are returned are freed with llamactl_chat_free.
#include "analysis.h"
#include "libllama.h"

#include "chat.h"
#include "log.h"
#include "reasoning-budget.h"

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

using json = common_json;

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// llama.cpp needs some 2 kB of stack for each level of an answer, less for all else; a thread has 8 MiB of it.
constexpr size_t MAX_REQUEST_NESTING = 200;
constexpr size_t MAX_ANSWER_NESTING  = 1000;
constexpr size_t MAX_PARSERS         = 16;

struct nesting_error : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

char * copy_text(const std::string & text, size_t * size) {
    char * copy = static_cast<char *>(std::malloc(text.size() + 1));
    if (copy != nullptr) {
        std::memcpy(copy, text.data(), text.size());
        copy[text.size()] = '\0';
    }
    *size = copy != nullptr ? text.size() : 0;
    return copy;
}

char * copy_error(const char * kind, const char * message, size_t * size) {
    try {
        return copy_text(json{{"error", {{"kind", kind}, {"message", message}}}}.dump_safe(), size);
    } catch (...) {
        return copy_text(R"({"error": {"kind": "memory", "message": "out of memory"}})", size);
    }
}

// What `make` returns, or the error that it throws; null only where there is no memory for either.
template <typename Make> char * guard(size_t * size, Make && make) {
    try {
        return copy_text(make(), size);
    } catch (const nesting_error & error) {
        return copy_error("nesting", error.what(), size);
    } catch (const std::bad_alloc &) {
        return copy_error("memory", "out of memory", size);
    } catch (const std::invalid_argument & error) {
        return copy_error("invalid", error.what(), size);
    } catch (const common_json_error & error) {
        return copy_error("invalid", error.what(), size);
    } catch (const std::exception & error) {
        return copy_error("failed", error.what(), size);
    } catch (...) {
        return copy_error("failed", "an exception that is none of std's", size);
    }
}

// The same for what makes an object: null, and the error in *error.
template <typename Make> void * guard_new(char ** error, size_t * size, Make && make) {
    void * made = nullptr;
    char * text = guard(size, [&]() -> std::string {
        made = make().release();
        return {};
    });
    if (made != nullptr) {
        std::free(text);
        text = nullptr;
    }
    *error = text;
    return made;
}

// --- limits -----------------------------------------------------------------------------------------------------------

// How deep brackets of JSON are nested; those within its strings count for nothing.
size_t count_nesting(const char * text, size_t size) {
    size_t depth = 0, deepest = 0;
    bool   in_string = false;
    for (size_t i = 0; i < size; i++) {
        const char c = text[i];
        if (in_string) {
            if (c == '\\') {
                i++;
            } else if (c == '"') {
                in_string = false;
            }
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            deepest = std::max(deepest, ++depth);
        } else if ((c == ']' || c == '}') && depth > 0) {
            depth--;
        }
    }
    return deepest;
}

void check_nesting(const char * text, size_t size, const char * what) {
    const size_t deepest = count_nesting(text, size);
    if (deepest > MAX_REQUEST_NESTING) {
        throw nesting_error(std::string(what) + " is nested " + std::to_string(deepest) + " deep, at most " +
                            std::to_string(MAX_REQUEST_NESTING) + " is taken");
    }
}

// Texts that llama.cpp, or a template, reads as JSON: arguments of calls always, contents where somebody may.
void check_texts(const std::vector<common_chat_msg> & messages, bool opens_contents) {
    for (const auto & message : messages) {
        for (const auto & call : message.tool_calls) {
            check_nesting(call.arguments.data(), call.arguments.size(), "the arguments of a call");
        }
        if (opens_contents || message.role == "tool") {
            check_nesting(message.content.data(), message.content.size(), "the content of a message");
            for (const auto & part : message.content_parts) {
                check_nesting(part.text.data(), part.text.size(), "the content of a message");
            }
        }
    }
}

// --- reading and writing ----------------------------------------------------------------------------------------------

json parse_request(const char * text, size_t size) {
    check_nesting(text, size, "the request");
    return json::parse(std::string(text, size));
}

bool has(const json & body, const char * key) { return body.contains(key) && !body.at(key).is_null(); }

bool read_flag(const json & body, const char * key, bool otherwise) {
    return has(body, key) ? body.at(key).get<bool>() : otherwise;
}

std::string read_text(const json & body, const char * key) {
    return has(body, key) ? body.at(key).get<std::string>() : std::string();
}

// As llama-server reads a request (tools/server/server-common.cpp, oaicompat_chat_params_parse).
common_chat_templates_inputs read_inputs(const json & body, const std::map<std::string, bool> & capabilities) {
    common_chat_templates_inputs inputs;
    inputs.messages = common_chat_msgs_parse_oaicompat(body.at("messages"));
    if (has(body, "tools")) {
        inputs.tools = common_chat_tools_parse_oaicompat(body.at("tools"));
    }
    if (has(body, "tool_choice")) {
        inputs.tool_choice = common_chat_tool_choice_parse_oaicompat(body.at("tool_choice").get<std::string>());
    }
    if (has(body, "json_schema")) {
        inputs.json_schema = body.at("json_schema").dump();
    }
    inputs.grammar               = read_text(body, "grammar");
    inputs.add_generation_prompt = read_flag(body, "add_generation_prompt", true);
    inputs.enable_thinking       = read_flag(body, "enable_thinking", true);
    inputs.parallel_tool_calls =
        read_flag(body, "parallel_tool_calls", capabilities.at("supports_parallel_tool_calls"));
    inputs.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
    if (has(body, "reasoning_format")) {
        inputs.reasoning_format = common_reasoning_format_from_name(body.at("reasoning_format").get<std::string>());
    }
    if (has(body, "continue_final_message")) {
        inputs.continue_final_message = common_chat_continuation_parse(body.at("continue_final_message"));
    }
    if (has(body, "chat_template_kwargs")) {
        for (const auto & [key, value] : body.at("chat_template_kwargs").items()) {
            inputs.chat_template_kwargs[key] = value.dump();
        }
    }
    return inputs;
}

json write_triggers(const std::vector<common_grammar_trigger> & triggers) {
    json written = json::array();
    for (const auto & trigger : triggers) {
        const char * type = "";
        switch (trigger.type) {
            case COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN: type = "token"; break;
            case COMMON_GRAMMAR_TRIGGER_TYPE_WORD: type = "word"; break;
            case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN: type = "pattern"; break;
            case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN_FULL: type = "pattern_full"; break;
        }
        written.push_back({{"type", type}, {"value", trigger.value}, {"token", trigger.token}});
    }
    return written;
}

json write_delta(const common_chat_msg_diff & diff) {
    json written = json::object();
    if (!diff.reasoning_content_delta.empty()) {
        written["reasoning_content"] = diff.reasoning_content_delta;
    }
    if (!diff.content_delta.empty()) {
        written["content"] = diff.content_delta;
    }
    if (diff.tool_call_index != std::string::npos) {
        const auto & call = diff.tool_call_delta;
        written["call"]   = json{
            {"index", diff.tool_call_index}, {"id", call.id}, {"name", call.name}, {"arguments", call.arguments}};
    }
    return written;
}

json write_message(const common_chat_msg & message) {
    json calls = json::array();
    for (const auto & call : message.tool_calls) {
        calls.push_back({{"id", call.id}, {"name", call.name}, {"arguments", call.arguments}});
    }
    return json{{"content", message.render_content("\n")},
                {"reasoning_content", message.reasoning_content},
                {"tool_calls", calls}};
}

// --- handles ----------------------------------------------------------------------------------------------------------

struct chat_template {
    common_chat_templates_ptr   templates;
    std::map<std::string, bool> capabilities;
    mutable known_analyses      known;
    // Whether a template may read what a message says as JSON.
    bool opens_contents = false;
};

using parser_ptr = std::shared_ptr<const common_peg_arena>;

// Loading a parser takes longer than most uses of it; requests with the same tools and options share one.
parser_ptr load_parser(const std::string & saved) {
    static std::mutex mutex;
    // Never freed: a thread may still parse when the process ends.
    static auto & recent = *new std::list<std::pair<std::string, parser_ptr>>;
    {
        std::lock_guard lock(mutex);
        for (auto it = recent.begin(); it != recent.end(); ++it) {
            if (it->first == saved) {
                recent.splice(recent.begin(), recent, it);
                return recent.front().second;
            }
        }
    }
    auto arena = std::make_shared<common_peg_arena>();
    if (!saved.empty()) {
        arena->load(saved);
    }
    std::lock_guard lock(mutex);
    recent.emplace_front(saved, arena);
    if (recent.size() > MAX_PARSERS) {
        recent.pop_back();
    }
    return arena;
}

// One answer that is being generated, and what has been said of it so far.
struct chat_answer {
    parser_ptr                parser;
    common_chat_parser_params params; // with no parser of its own: the one above is passed beside it
    std::string               text;
    common_chat_msg           said;
    std::vector<std::string>  ids;
    std::string               id_prefix;
    size_t                    n_ids   = 0;
    size_t                    depth   = 0;
    size_t                    deepest = 0;

    common_chat_msg parse(bool is_partial) const {
        return common_chat_peg_parse(*parser, text, is_partial, params);
    }

    // An answer may hold its JSON anywhere and in several dialects, so that its brackets count wherever they stand.
    void append(const char * added, size_t size) {
        text.append(added, size);
        for (size_t i = 0; i < size; i++) {
            if (added[i] == '[' || added[i] == '{') {
                deepest = std::max(deepest, ++depth);
            } else if ((added[i] == ']' || added[i] == '}') && depth > 0) {
                depth--;
            }
        }
        if (deepest > MAX_ANSWER_NESTING) {
            throw nesting_error("the answer is nested " + std::to_string(deepest) + " deep, at most " +
                                std::to_string(MAX_ANSWER_NESTING) + " is parsed");
        }
    }
};

} // namespace

// --- what Python calls ------------------------------------------------------------------------------------------------

EXPORT void llamactl_chat_free(char * text) { std::free(text); }

// For what this library was built; llama.cpp's headers of another version would be another library's memory.
EXPORT const char * llamactl_chat_describe() {
    return R"({"llama_cpp_python": ")" LLAMACTL_LLAMA_CPP_PYTHON R"(", "llama_cpp": ")" LLAMACTL_LLAMA_CPP
           R"(", "source": ")" LLAMACTL_SOURCE R"("})";
}

// First of all, and once. `libllama` is a handle of dlopen.
EXPORT char * llamactl_chat_bind(void * libllama, size_t * size) {
    return guard(size, [&] {
        const auto missing = bind_libllama(libllama);
        if (!missing.empty()) {
            throw std::invalid_argument("libllama lacks " + missing);
        }
        common_log_set_verbosity_thold(-1); // it would write what users say to stderr, and start a thread for that
        return json{{"llama_cpp", llama_version()}}.dump_safe();
    });
}

// {"source", "bos", "eos"}. With a model its vocabulary says what begins and ends a text, and without a source its file
// has the template, and maybe another one for tools.
EXPORT void * llamactl_chat_open(
    const char * request, size_t request_size, const llama_model * model, char ** error, size_t * size) {
    return guard_new(error, size, [&] {
        const auto body   = parse_request(request, request_size);
        const auto source = read_text(body, "source");
        if (model == nullptr && source.empty()) {
            throw std::invalid_argument("neither a template nor a model");
        }
        auto made = std::make_unique<chat_template>();
        try {
            made->templates =
                common_chat_templates_init(model, source, read_text(body, "bos"), read_text(body, "eos"));
        } catch (const std::exception &) { // it throws a slice without the reason, which parsing alone gives
            const char * in_file = source.empty() ? llama_model_chat_template(model, nullptr) : nullptr;
            common_chat_template(in_file != nullptr ? in_file : source, "", "");
            throw;
        }
        made->capabilities = common_chat_templates_get_caps(made->templates.get());
        for (const char * variant : {"", "tool_use"}) {
            const auto text = common_chat_templates_source(made->templates.get(), variant);
            made->opens_contents |= text.find("from_json") != std::string::npos;
        }
        return made;
    });
}

EXPORT void llamactl_chat_close(void * handle) { delete static_cast<chat_template *>(handle); }

EXPORT char * llamactl_chat_info(const void * handle, size_t * size) {
    return guard(size, [&] {
        const auto & opened    = *static_cast<const chat_template *>(handle);
        const auto * templates = opened.templates.get();
        analyses_in_use in_use(opened.known);
        return json{
            {"capabilities", opened.capabilities},
            {"supports_thinking", common_chat_templates_support_enable_thinking(templates)},
            {"is_explicit", common_chat_templates_was_explicit(templates)},
            {"source", common_chat_templates_source(templates)},
            {"tool_use_source", common_chat_templates_source(templates, "tool_use")},
        }.dump_safe();
    });
}

EXPORT char * llamactl_chat_apply(const void * handle, const char * request, size_t request_size, size_t * size) {
    return guard(size, [&] {
        const auto & opened = *static_cast<const chat_template *>(handle);
        const auto   inputs = read_inputs(parse_request(request, request_size), opened.capabilities);
        check_texts(inputs.messages, opened.opens_contents);
        analyses_in_use in_use(opened.known);
        const auto applied = common_chat_templates_apply(opened.templates.get(), inputs);
        return json{
            {"prompt", applied.prompt},
            {"format", static_cast<int>(applied.format)},
            {"format_name", common_chat_format_name(applied.format)},
            {"grammar", applied.grammar},
            {"grammar_lazy", applied.grammar_lazy},
            {"grammar_triggers", write_triggers(applied.grammar_triggers)},
            {"preserved_tokens", applied.preserved_tokens},
            {"additional_stops", applied.additional_stops},
            {"generation_prompt", applied.generation_prompt},
            {"supports_thinking", applied.supports_thinking},
            {"thinking_start_tag", applied.thinking_start_tag},
            {"thinking_end_tags", applied.thinking_end_tags},
            {"message_delimiters", applied.message_delimiters.to_json()},
            {"parser", applied.parser},
        }.dump_safe();
    });
}

// {"format", "generation_prompt", "parser"} as applied, "id_prefix" for ids of calls to which the model gives none, and
// "is_continuation": of an answer that the client has begun only what follows is told.
EXPORT void * llamactl_answer_open(const char * request, size_t request_size, char ** error, size_t * size) {
    return guard_new(error, size, [&] {
        const auto body = json::parse(std::string(request, request_size));
        auto       made = std::make_unique<chat_answer>();
        made->parser                   = load_parser(read_text(body, "parser"));
        made->params.format            = static_cast<common_chat_format>(body.at("format").get<int>());
        made->params.generation_prompt = read_text(body, "generation_prompt");
        made->id_prefix                = read_text(body, "id_prefix");
        if (read_flag(body, "is_continuation", false)) {
            made->said = made->parse(true);
        }
        return made;
    });
}

EXPORT void llamactl_answer_close(void * handle) { delete static_cast<chat_answer *>(handle); }

// Adds a text and parses all of it anew. {"deltas", "message"}, which hold what the texts so far have in common: after an
// error nothing has been told of this text, and nothing is lost: the next one is parsed with it.
EXPORT char * llamactl_answer_feed(void * handle, const char * added, size_t added_size, int is_partial, size_t * size) {
    return guard(size, [&] {
        auto & answer = *static_cast<chat_answer *>(handle);
        answer.append(added, added_size);
        json deltas = json::array();
        auto parsed = answer.parse(is_partial != 0);
        if (!parsed.empty()) {
            parsed.set_tool_call_ids(answer.ids, [&] { return answer.id_prefix + std::to_string(answer.n_ids++); });
            for (const auto & diff : common_chat_msg_diff::compute_diffs(answer.said, parsed)) {
                deltas.push_back(write_delta(diff));
            }
            answer.said = std::move(parsed);
        }
        return json{{"deltas", deltas}, {"message", is_partial ? json() : write_message(answer.said)}}.dump_safe();
    });
}

// A sampler that counts the tokens between `start` and the first of `n_ends` endings, which stand one after the other in
// `ends`, and after `budget` of them (less than 0: any number) forces `forced`. Null: no memory.
EXPORT llama_sampler * llamactl_reasoning_open(const llama_vocab * vocab, const llama_token * start, size_t start_size,
                                               const llama_token * ends, const size_t * end_sizes, size_t n_ends,
                                               const llama_token * forced, size_t forced_size, int budget, int state) {
    try {
        std::vector<llama_tokens> sequences;
        for (size_t i = 0; i < n_ends; ends += end_sizes[i++]) {
            sequences.emplace_back(ends, ends + end_sizes[i]);
        }
        return common_reasoning_budget_init(vocab, {llama_tokens(start, start + start_size)}, sequences,
                                            llama_tokens(forced, forced + forced_size), budget < 0 ? INT_MAX : budget,
                                            static_cast<common_reasoning_budget_state>(state));
    } catch (...) {
        return nullptr;
    }
}

// 0 no block yet, 1 within one, 2 it is being ended, 3 it will be after this character, 4 after it.
EXPORT int llamactl_reasoning_state(const llama_sampler * sampler) {
    return common_reasoning_budget_get_state(sampler);
}

// Ends the block now. Whether there was one.
EXPORT int llamactl_reasoning_end(llama_sampler * sampler) { return common_reasoning_budget_force(sampler); }
