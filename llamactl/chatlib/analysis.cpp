// What does llama.cpp find out about a template by rendering it some fifty times, for each request anew? The same each
// time: here it does so once for a template.
//
// The linker leads calls of the first function below to it, and calls of the second to llama.cpp's own (ld(1), --wrap):
// nothing of llama.cpp is changed. The names are those that C++ gives to autoparser::analyze_template; a version in which
// they are others does not link.
#include "analysis.h"

namespace {
thread_local known_analyses * current = nullptr;
}

analyses_in_use::analyses_in_use(known_analyses & known) { current = &known; }

analyses_in_use::~analyses_in_use() { current = nullptr; }

extern "C" {
void __real__ZN10autoparser10autoparser16analyze_templateERK20common_chat_template(autoparser::autoparser *       self,
                                                                                   const common_chat_template & source);

void __wrap__ZN10autoparser10autoparser16analyze_templateERK20common_chat_template(autoparser::autoparser *       self,
                                                                                   const common_chat_template & source) {
    if (current == nullptr) {
        __real__ZN10autoparser10autoparser16analyze_templateERK20common_chat_template(self, source);
        return;
    }
    {
        std::lock_guard lock(current->mutex);
        const auto      found = current->analyses.find(&source);
        if (found != current->analyses.end()) {
            *self = found->second;
            return;
        }
    }
    __real__ZN10autoparser10autoparser16analyze_templateERK20common_chat_template(self, source);
    std::lock_guard lock(current->mutex);
    current->analyses.emplace(&source, *self);
}
}
