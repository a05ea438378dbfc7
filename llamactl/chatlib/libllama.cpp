// What do llama.cpp's sources in this library call of libllama? These functions, which are looked up once in the libllama
// that the process has loaded already.
//
// The library therefore needs no other one: whatever a wheel has made of the names of llama.cpp's libraries, it cannot
// bring a second copy of them into the process. The functions here are hidden, so nobody else finds them.
#include "libllama.h"

#include "ggml.h"
#include "llama.h"

#include <dlfcn.h>

#include <cstdarg>
#include <cstdio>
#include <stdexcept>

#define FUNCTIONS(F)                                                                                                    \
    F(llama_version, const char *, (), ())                                                                              \
    F(llama_model_chat_template, const char *, (const llama_model * model, const char * name), (model, name))           \
    F(llama_model_get_vocab, const llama_vocab *, (const llama_model * model), (model))                                 \
    F(llama_vocab_bos, llama_token, (const llama_vocab * vocab), (vocab))                                               \
    F(llama_vocab_eos, llama_token, (const llama_vocab * vocab), (vocab))                                               \
    F(llama_vocab_get_add_bos, bool, (const llama_vocab * vocab), (vocab))                                              \
    F(llama_vocab_get_add_eos, bool, (const llama_vocab * vocab), (vocab))                                              \
    F(llama_token_to_piece, int32_t,                                                                                    \
      (const llama_vocab * vocab, llama_token token, char * text, int32_t size, int32_t skipped, bool special),         \
      (vocab, token, text, size, skipped, special))                                                                     \
    F(llama_chat_apply_template, int32_t,                                                                               \
      (const char * name, const llama_chat_message * chat, size_t n, bool add, char * text, int32_t size),              \
      (name, chat, n, add, text, size))                                                                                 \
    F(llama_sampler_init, llama_sampler *, (llama_sampler_i * interface, llama_sampler_context_t context),              \
      (interface, context))

#define DEFINE(name, result, parameters, arguments)                                                                     \
    static decltype(&::name) found_##name = nullptr;                                                                    \
    extern "C" result name parameters { return found_##name arguments; }

FUNCTIONS(DEFINE)

std::string bind_libllama(void * library) {
    std::string missing;
#define FIND(name, result, parameters, arguments)                                                                       \
    found_##name = reinterpret_cast<decltype(&::name)>(dlsym(library, #name));                                          \
    if (found_##name == nullptr) {                                                                                      \
        missing += missing.empty() ? #name : ", " #name;                                                                \
    }
    FUNCTIONS(FIND)
    return missing;
}

// What GGML_ASSERT calls. ggml's own ends the process; in these sources, all C++, an exception does.
extern "C" void ggml_abort(const char * file, int line, const char * format, ...) {
    char    reason[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(reason, sizeof reason, format, arguments);
    va_end(arguments);
    throw std::logic_error(std::string(file) + ":" + std::to_string(line) + ": " + reason);
}
